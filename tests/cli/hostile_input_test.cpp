// SPDX-License-Identifier: Apache-2.0
// Numbers beyond their range, text that a terminal would obey, folders that others write to, and full disks.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "files.h"
#include "io/npy.h"
#include "program.h"
#include "runtime/temporary_folder.h"

namespace strobe::test {
namespace {

namespace fs = std::filesystem;

TEST(Numbers, OutOfRangeAreErrors) {
  for (const char* const seed : {"18446744073709551616", "100000000000000000000000", "-1", "1.5", "0x10", "", "1 "}) {
    expect_rejection(run_program({"verify", "--seqlen", "1", "--seed", seed}), 2, "--seed: '");
  }
  const std::string huge = "100000000000000000000";
  for (const char* const flag : {"--chunk", "--seqlen", "--seqlen-k", "--batch", "--heads", "--heads-kv", "--head-dim",
                                 "--head-dim-v", "--block-size", "--threads"}) {
    expect_rejection(run_program({"explain", flag, huge}), 2, std::string(flag) + ": '" + huge + "' is not an integer");
  }
  expect_rejection(run_program({"explain", "--window", huge, "0"}), 2, "--window: '" + huge);
  for (const char* const flag : {"--scale", "--softcap", "--dropout"}) {
    for (const char* const value : {"1e39", "nan", "inf", "1e-60", "1,5"}) {
      expect_rejection(run_program({"explain", flag, value}), 2,
                       std::string(flag) + ": '" + value + "' is not a number");
    }
  }
  for (const char* const flag : {"--repeats", "--seqlen", "--seqlen-k", "--threads", "--fast-memory", "--tokens"}) {
    expect_rejection(run_program({"bench", flag, huge}), 2, std::string(flag) + ": '" + huge);
  }
}

TEST(Numbers, AreDecimal) {
  const Outcome outcome = run_program({"explain", "--seqlen", "010"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("seqlen 10,"), std::string::npos) << outcome.out;
}

TEST(Numbers, NoHeadsAndNoRowsAreErrorsWhereNothingCanBeSaid) {
  expect_rejection(run_program({"explain", "--heads", "0", "--heads-kv", "2"}), 2, "--heads: '0'");
  expect_rejection(run_program({"verify", "--heads", "0"}), 2, "--heads: '0'");
  expect_rejection(run_program({"verify", "--eight-bit", "--seqlen", "0"}), 2, "--seqlen");
  EXPECT_EQ(run_program({"verify", "--seqlen", "0"}).exit_code, 0);
}

TEST(Numbers, ThatSizeMemoryDoNotOverflow) {
  const std::string huge = "4611686018427387904";
  expect_rejection(run_program({"verify", "--eight-bit", "--seqlen", huge}), 4, "63 bits");
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which end a program that asks for so much
  expect_rejection(run_program({"verify", "--eight-bit", "--seqlen", "1000000000000000", "--heads", "1"}), 4, "memory");
#endif
  expect_rejection(run_program({"bench", "--io", "--seqlen", huge, "--head-dim", "64"}), 2, "--seqlen 1048576");
}

/// No byte that a terminal obeys but the line end.
bool is_plain(const std::string& text) {
  return std::ranges::all_of(text, [](unsigned char byte) { return byte == '\n' || (byte >= 0x20 && byte != 0x7F); });
}

TEST(Text, FromFilesAndArgumentsIsEscaped) {
  const TemporaryFolder folder;
  const std::string npy = folder / "q.npy";
  write_bytes(npy, npy_bytes(1, "{'descr': '\x1b]0;x\x07', 'fortran_order': False, 'shape': (1,), }", "1234"));
  const std::string safetensors = folder / "x.safetensors";
  const std::string header = R"({"\u001b[2J\u0007":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  write_bytes(safetensors, static_cast<char>(header.size()) + std::string(7, '\0') + header + "1234");
  const std::vector<std::pair<std::vector<std::string>, std::string>> calls{
      {{"run", "--q", npy, "--k", npy, "--v", npy}, "'\\x1b]0;x\\x07'"},
      {{"run", "--input", safetensors}, "\\x1b[2J\\x07"},
      {{"run", "--input", "/no/\x1b[31m\n\xff"}, "/no/\\x1b[31m\\n\\xff"},
      {{"\x1b[31m"}, "\\x1b[31m"},
      {{"explain", "--\x1b"}, "--\\x1b"},
      {{"explain", "--seqlen", "\x9b"}, "'\\x9b'"}};
  for (const auto& [call, words] : calls) {
    const Outcome outcome = run_program(call);
    expect_rejection(outcome, 2, words);
    EXPECT_TRUE(is_plain(outcome.err)) << outcome.err;
  }
}

TEST(Text, ErrorsNameTheCommandsOwnHelp) {
  expect_rejection(run_program({"run", "--causl"}), 2, "(see strobe run --help)");
  expect_rejection(run_program({"polish"}), 2, "(see strobe --help)");
}

TEST(Output, ThatCannotBeWrittenIsAnError) {
  for (const std::vector<std::string>& call : std::vector<std::vector<std::string>>{
           {"info"},
           {"explain"},
           {"verify", "--seqlen", "8", "--heads", "1"},
           {"--help"},
           {"run", "--help"},
           {"--version"},
           {"bench", "--seqlen", "8", "--heads", "1", "--repeats", "1", "--implementation", "strobe"}}) {
    const Outcome outcome = run_program(call, "/dev/full");
    EXPECT_EQ(outcome.exit_code, 4) << call[0];
    EXPECT_NE(outcome.err.find("strobe: cannot write to standard output: No space left on device\n"), std::string::npos)
        << outcome.err;
  }
}

class RunInto : public testing::Test {
 protected:
  RunInto() {
    for (const char* const name : {"q", "k", "v"}) {
      EXPECT_TRUE(
          io::write_npy(folder_ / (std::string(name) + ".npy"), normal_tensor(DType::float32, {1, 8, 2, 16}, 1)).ok());
    }
    fs::create_directory(out_);
  }

  Outcome run() {
    return run_program(
        {"run", "--q", folder_ / "q.npy", "--k", folder_ / "k.npy", "--v", folder_ / "v.npy", "--out", out_});
  }

  TemporaryFolder folder_;
  std::string out_ = folder_ / "out\x1b";
};

TEST_F(RunInto, SaysWhatItWroteOnceItIsThere) {
  const Outcome outcome = run();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("wrote to " + std::string(folder_ / "out\\x1b") + "\n"), std::string::npos) << outcome.out;
  EXPECT_TRUE(is_plain(outcome.out)) << outcome.out;
}

TEST_F(RunInto, ReplacesPlantedLinks) {
  const std::string precious = folder_ / "precious";
  write_bytes(precious, "kept");
  fs::create_symlink(precious, out_ + "/o.npy");
  EXPECT_EQ(run().exit_code, 0);
  EXPECT_EQ(read_bytes(precious), "kept");
  EXPECT_FALSE(fs::is_symlink(out_ + "/o.npy"));
}

TEST_F(RunInto, WritesNothingWhenSomethingCannotBeWritten) {
  fs::create_directory(out_ + "/lse.npy");  // the second of two results
  const Outcome outcome = run();
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("lse.npy': it is not a regular file"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.out.find("wrote"), std::string::npos) << outcome.out;
  EXPECT_EQ(std::distance(fs::directory_iterator(out_), {}), 1);
}

}  // namespace
}  // namespace strobe::test
