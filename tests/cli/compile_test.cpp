// SPDX-License-Identifier: Apache-2.0
// strobe compile, and the recorded calls that it reads, on a machine that needs no GPU.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "files.h"
#include "io/npy.h"
#include "program.h"
#include "runtime/temporary_folder.h"

namespace strobe::test {
namespace {

class CompileCommand : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("STROBE_CACHE_DIR", path("cache").c_str(), 1);
    if (*STROBE_TEST_NVRTC != '\0') ::setenv("STROBE_NVRTC", STROBE_TEST_NVRTC, 0);
    ::setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // NVRTC keeps memory until the process ends
    ::setenv("STROBE_RECORD", path("calls.jsonl").c_str(), 1);
  }
  void TearDown() override {
    ::unsetenv("ASAN_OPTIONS");
    ::unsetenv("STROBE_CACHE_DIR");
    ::unsetenv("STROBE_RECORD");
  }

  std::string path(const std::string& name) const { return folder_ / name; }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }

  std::string recorded() const {
    std::ifstream file(path("calls.jsonl"));
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  TemporaryFolder folder_;
};

TEST_F(CompileCommand, ReadsWhatARunRecorded) {
  ASSERT_EQ(run_program({"explain", "--seqlen", "64", "--causal", "--dtype", "bfloat16"}).exit_code, 0);
  EXPECT_EQ(recorded(),
            "{\"dtype\": \"bfloat16\", \"batch\": 1, \"heads_q\": 8, \"heads_kv\": 8, \"head_dim\": 128, "
            "\"head_dim_v\": 128, \"seqlen_q\": 64, \"seqlen_k\": 64, \"total_q\": 64, \"total_k\": 64, "
            "\"scale\": 0.088388346, \"causal\": \"bottom_right\", \"wants_lse\": true}\n");
  const auto result = run_program({"compile", "--recorded", path("calls.jsonl"), "--device", "h100", "--json", "-"});
  const nlohmann::json report = nlohmann::json::parse(result.out, nullptr, false);
  // Without a compiler there is an error that says so.
  if (result.exit_code == 3) GTEST_SKIP() << result.err;
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(report["calls"], 1);
  EXPECT_EQ(report["kernels"], 1);
  EXPECT_EQ(report["device"], "H100");
}

TEST_F(CompileCommand, ReadsRecordedLatentAttention) {
  ASSERT_EQ(run_program({"explain", "--seqlen", "1", "--seqlen-k", "96", "--heads", "16", "--heads-kv", "1",
                         "--head-dim", "64", "--head-dim-v", "512", "--qv", "--dtype", "bfloat16"})
                .exit_code,
            0);
  const auto result = run_program({"compile", "--recorded", path("calls.jsonl"), "--device", "h100", "--json", "-"});
  if (result.exit_code == 3) GTEST_SKIP() << result.err;
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json report = nlohmann::json::parse(result.out, nullptr, false);
  EXPECT_EQ(report["calls"], 1);
  EXPECT_EQ(report["without_kernels"], nlohmann::json::object());
}

TEST_F(CompileCommand, ReadsTheTextsOfARecordedCall) {
  const std::string slope = path("slope.npy");
  ASSERT_TRUE(io::write_npy(slope, normal_tensor(DType::float32, {8}, 1)).ok());
  const std::vector<std::string> texts = {
      "--score", "score + slope[head]\t* (k - q)", "--mask-text", "k <= q || k < 4", "--capture", "slope=" + slope};
  std::vector<std::string> explain{"explain", "--seqlen", "64", "--head-dim", "64", "--dtype", "float16", "--backward"};
  explain.insert(explain.end(), texts.begin(), texts.end());
  ASSERT_EQ(run_program(explain).exit_code, 0);
  EXPECT_TRUE(contains(recorded(),
                       R"~("expression": {"score": "score + slope[head] * (k - q)", "mask": "k <= q || k < 4", )~"
                       R"~("captures": [{"name": "slope", "dtype": "float32", "rank": 1}], "slopes_fit": true})~"))
      << recorded();
  std::string with_gradient = recorded();
  const std::string captures = R"("rank": 1}])";
  with_gradient.insert(with_gradient.find(captures) + captures.size(), R"(, "gradients": 1)");
  const auto result =
      run_program({"compile", "--recorded", write("calls", with_gradient), "--device", "a100", "--json", "-"});
  if (result.exit_code == 3) GTEST_SKIP() << result.err;
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json report = nlohmann::json::parse(result.out, nullptr, false);
  EXPECT_EQ(report["without_kernels"], nlohmann::json::object());
  EXPECT_TRUE(contains(report["compiled"].dump(), "sm80 backward, captures")) << report["compiled"];
}

TEST_F(CompileCommand, SaysWhatIsWrongWithTexts) {
  const std::string start = R"({"batch": 1, "heads_q": 8, "heads_kv": 8, "head_dim": 64, "head_dim_v": 64, )"
                            R"("seqlen_q": 1, "seqlen_k": 96, "total_q": 1, "total_k": 96, "expression": )";
  const auto expect_error = [&](const std::string& expression, const std::string& words) {
    const std::string calls = write("calls", start + expression + "}\n");
    expect_rejection(run_program({"compile", "--recorded", calls, "--device", "a100"}), 2, words);
  };
  expect_error("3", "line 1: expression is 3");
  expect_error("{}", "neither a score nor a mask is given");
  expect_error(R"({"score": 3})", "score is 3: it must be a string");
  expect_error(R"({"score": "score + slop"})", "unknown name `slop`");
  expect_error(R"({"score": "score + a[q]", "captures": [{"name": "a"}]})", "a name, a dtype and a rank are expected");
  expect_error(R"({"score": "score + a[q]", "captures": [{"name": "a", "dtype": "float", "rank": 1}]})", "dtype is");
  const std::string config = write("config", R"({"num_attention_heads": 8, "hidden_size": 512})");
  expect_rejection(run_program({"compile", "--config", config, "--device", "a100", "--score", "score + slop"}), 2,
                   "unknown name `slop`");
  expect_rejection(run_program({"compile", "--recorded", config, "--score", "score"}), 2, "--score requires --config");
}

TEST_F(CompileCommand, WritesAPackThatTheLibraryReads) {
  // A call that the library's own pack does not hold.
  const std::string calls = write(
      "softcap", R"({"dtype": "bfloat16", "batch": 1, "heads_q": 8, "heads_kv": 8, "head_dim": 64, "head_dim_v": 64, )"
                 R"("seqlen_q": 1, "seqlen_k": 96, "total_q": 1, "total_k": 96, "scale": 0.125, "softcap": 7})"
                 "\n");
  const std::vector<std::string> compile = {"compile", "--recorded", calls, "--device", "a100", "--json", "-"};
  std::vector<std::string> packing = compile;
  packing.insert(packing.end(), {"--pack", path("one.archive")});
  const auto packed = run_program(packing);
  if (packed.exit_code == 3) GTEST_SKIP() << packed.err;
  ASSERT_EQ(packed.exit_code, 0) << packed.err;
  const nlohmann::json in_pack = nlohmann::json::parse(packed.out, nullptr, false);
  EXPECT_EQ(in_pack["compiled"].size(), in_pack["kernels"]);

  ::setenv("STROBE_KERNELS", path("one.archive").c_str(), 1);
  ::setenv("STROBE_CACHE_DIR", path("empty").c_str(), 1);
  const auto found = run_program(compile);
  ::unsetenv("STROBE_KERNELS");
  ASSERT_EQ(found.exit_code, 0) << found.err;
  EXPECT_EQ(nlohmann::json::parse(found.out, nullptr, false)["compiled"].size(), 0);
}

TEST_F(CompileCommand, ChecksThePackBeforeItCompiles) {
  const auto result =
      run_program({"compile", "--combinations", "--device", "h100", "--pack", path("none/one.archive")});
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_NE(result.err.find(path("none/one.archive")), std::string::npos) << result.err;
}

TEST_F(CompileCommand, SaysWhatIsWrongWithItsFiles) {
  const auto error = [&](const std::string& flag, const std::string& file) {
    const auto result = run_program({"compile", flag, file, "--device", "h100"});
    EXPECT_EQ(result.exit_code, 2) << result.err;
    return result.err;
  };
  const std::string missing = path("missing");
  EXPECT_EQ(error("--recorded", missing), "strobe: '" + missing + "' cannot be read\n");
  const std::string lines = write("lines", "{}\n");
  EXPECT_EQ(error("--recorded", lines),
            "strobe: '" + lines + "' line 1: head_dim must be 1 to 576 and head_dim_v 1 to 512\n");
  const std::string list = write("list", "[]");
  EXPECT_EQ(error("--config", list), "strobe: '" + list + "' is no JSON object: a model's config.json is expected\n");
  const std::string empty = write("empty", "{}");
  EXPECT_EQ(error("--config", empty), "strobe: '" + empty + "' has no num_attention_heads\n");
}

TEST_F(CompileCommand, WantsAFile) {
  const auto result = run_program({"compile"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("compile --help"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace strobe::test
