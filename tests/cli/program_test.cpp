// SPDX-License-Identifier: Apache-2.0
// info, explain and verify; help, versions and exit codes.
#include <gtest/gtest.h>

#include <string>

#include "program.h"

namespace strobe::test {
namespace {

TEST(Program, HelpTeachesByExample) {
  const Outcome help = run_program({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_EQ(help.err, "");
  EXPECT_TRUE(contains(help.out, "Examples:"));
  EXPECT_TRUE(contains(help.out, "Exit codes:"));
  for (const std::string command : {"info", "run", "explain", "verify", "bench"}) {
    EXPECT_TRUE(contains(help.out, "  " + command + " ")) << command;
    const Outcome own = run_program({command, "--help"});
    EXPECT_EQ(own.exit_code, 0);
    EXPECT_EQ(own.err, "");
    EXPECT_TRUE(contains(own.out, "\n  strobe " + command)) << "an example of " << command;
  }
}

TEST(Program, SaysItsVersion) {
  const Outcome outcome = run_program({"--version"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out.rfind("strobe ", 0), 0U);
}

TEST(Program, RejectsWrongUseInOneLine) {
  expect_rejection(run_program({}), 2, "A subcommand is required");
  expect_rejection(run_program({"polish"}), 2, "polish");
  expect_rejection(run_program({"info", "--loud"}), 2, "--loud");
  expect_rejection(run_program({"explain", "--dtype", "float8"}), 2, "float8");
  expect_rejection(run_program({"explain", "--seqlen", "many"}), 2, "--seqlen");
  expect_rejection(run_program({"explain", "--seqlen", "-1"}), 2, "--seqlen");
  expect_rejection(run_program({"explain", "--window", "3"}), 2, "--window");
  expect_rejection(run_program({"explain", "--causal", "--causal-top-left"}), 2, "--causal");
  expect_rejection(run_program({"verify", "--inputs", "zeros"}), 2, "zeros");
}

TEST(Program, PassesOnWhatTheLibraryRejects) {
  expect_rejection(run_program({"explain", "--heads", "3", "--heads-kv", "2"}), 2, "heads");
  expect_rejection(run_program({"verify", "--heads", "3", "--heads-kv", "2"}), 2, "heads");
  expect_rejection(run_program({"explain", "--engine", "gpu"}), 3, "CUDA");
  expect_rejection(run_program({"verify", "--engine", "gpu"}), 3, "CUDA");
  expect_rejection(run_program({"verify", "--eight-bit", "--device", "cuda"}), 3, "--eight-bit runs on the cpu");
  expect_rejection(run_program({"explain", "--head-dim", "513"}), 2, "512");
  const std::string huge = "4611686018427387904";
  expect_rejection(run_program({"explain", "--batch", huge, "--seqlen", huge}), 2, "");
}

TEST(Info, ShowsEnginesAndProcessor) {
  const Outcome outcome = run_program({"info"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  for (const char* const word :
       {"cpu              available", "gpu", "threads", "caches", "features", "instruction set"}) {
    EXPECT_TRUE(contains(outcome.out, word)) << word;
  }
}

TEST(Explain, NamesEngineAndWorkspace) {
  for (const char* const pass : {"", "--backward"}) {
    std::vector<std::string> arguments{"explain", "--window", "-1", "64", "--softcap", "30", "--head-dim-v", "96"};
    if (*pass != '\0') arguments.emplace_back(pass);
    const Outcome outcome = run_program(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_TRUE(contains(outcome.out, "(-1, 64), softcap 30")) << outcome.out;
    EXPECT_TRUE(contains(outcome.out, "cpu")) << outcome.out;
    EXPECT_TRUE(contains(outcome.out, "workspace")) << outcome.out;
  }
}

/// Latent attention, absorbed, as strobe.mla calls it.
TEST(Explain, TakesASecondQuery) {
  const std::vector<std::string> latent{"explain",    "--heads", "16",           "--heads-kv", "1",
                                        "--head-dim", "64",      "--head-dim-v", "512",        "--causal"};
  for (const char* const pass : {"", "--backward"}) {
    std::vector<std::string> arguments = latent;
    if (*pass != '\0') arguments.emplace_back(pass);
    EXPECT_FALSE(contains(run_program(arguments).out, "qv"));
    arguments.emplace_back("--qv");
    const Outcome outcome = run_program(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_TRUE(contains(outcome.out, "causal, qv\n")) << outcome.out;
    EXPECT_TRUE(contains(outcome.out, "qv            its products with V join those of Q with K")) << outcome.out;
  }
}

TEST(Verify, PassesAndShowsEveryResult) {
  const Outcome outcome =
      run_program({"verify", "--seqlen", "48", "--seqlen-k", "80", "--heads", "2", "--heads-kv", "1", "--head-dim",
                   "24", "--causal", "--softcap", "20", "--window", "40", "-1", "--seed", "3"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  for (const char* const tensor : {" O ", " LSE ", " dQ ", " dK ", " dV "}) EXPECT_TRUE(contains(outcome.out, tensor));
  for (const char* const dtype : {" float32 ", " float16 ", " bfloat16 "}) EXPECT_TRUE(contains(outcome.out, dtype));
  EXPECT_TRUE(contains(outcome.out, "\nnormal ") && contains(outcome.out, "\noutliers "));
  EXPECT_TRUE(contains(outcome.out, "\npass: ")) << outcome.out;
}

TEST(Verify, EightBitShowsEveryIngredient) {
  const Outcome outcome = run_program({"verify", "--eight-bit", "--seqlen", "64", "--heads", "1", "--head-dim", "64"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  for (const char* const row : {"\nbfloat16 ", "\ne4m3, blocks ", "\nint8, all: the default ",
                                "\nK, V alone: e4m3, a scale per head ", "\nK, V alone: e4m3, a scale per 32 keys ",
                                "\nK, V alone: int8, a scale per row ", "\nfast: estimate ", "\naccurate: bound "}) {
    EXPECT_TRUE(contains(outcome.out, row)) << outcome.out;
  }
}

TEST(Verify, EightBitOfLongContextsFindsNeedles) {
  const Outcome outcome = run_program({"verify", "--eight-bit", "--seqlen", "8", "--seqlen-k", "256", "--heads", "1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(contains(outcome.out, " needles")) << outcome.out;
  for (const char* const row : {"\nbfloat16 ", "\nK, V alone: e4m3, a scale per head "}) {
    EXPECT_TRUE(contains(outcome.out, row)) << outcome.out;
  }
  EXPECT_TRUE(contains(outcome.out, "the last 8 queries")) << outcome.out;
  expect_rejection(run_program({"verify", "--eight-bit", "--seqlen", "8", "--seqlen-k", "4"}), 2, "--seqlen-k must be");
}

TEST(Verify, DrawsTheSameInputsEveryTime) {
  const std::vector<std::string> arguments{"verify", "--seqlen", "16", "--heads", "1", "--head-dim", "8"};
  EXPECT_EQ(run_program(arguments).out, run_program(arguments).out);
}

}  // namespace
}  // namespace strobe::test
