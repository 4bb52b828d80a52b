// SPDX-License-Identifier: Apache-2.0
// What strobe explain says of score and mask texts, on the CPU and, where there is one, on a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "files.h"
#include "io/npy.h"
#include "program.h"
#include "runtime/device.h"
#include "runtime/temporary_folder.h"

namespace strobe::test {
namespace {

class ExplainTexts : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "cpu") return;
    const Result<const runtime::CudaDevice*> device = runtime::cuda_device(0);
    if (!device.ok()) GTEST_SKIP() << device.status().message();
  }

  /// What is explained of 1,024 queries and keys with these flags.
  static std::string explained(const Words& flags) {
    const Outcome outcome = run_program(Words{"explain", "--device", GetParam(), "--dtype", "bfloat16", "--seqlen",
                                              "1024", "--heads", "2", "--head-dim", "64"} +
                                        flags);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  }
};

INSTANTIATE_TEST_SUITE_P(, ExplainTexts, testing::Values("cpu", "cuda"),
                         [](const auto& tested) { return tested.param; });

void expect_contains(const std::string& text, const Words& all) {
  for (const std::string& words : all) EXPECT_TRUE(contains(text, words)) << words << "\nis not in\n" << text;
}

TEST_P(ExplainTexts, ThatOptionsSay) {
  expect_contains(explained({"--mask-text", "k <= q"}),
                  {"texts         the mask is the option causal\n", "              mask: k <= q\n",
                   "128 x 128 blocks of the mask: 28 empty, 28 full, 8 partial\n"});
  expect_contains(explained({"--mask-text", "q >= k && q - k < 128", "--backward"}),
                  {"the mask is the options causal and window (127, unbounded)", "49 empty, 0 full, 15 partial"});
  const TemporaryFolder folder;
  ASSERT_TRUE(io::write_npy(folder / "bias.npy", normal_tensor(DType::float32, {1024, 1024}, 1)).ok());
  expect_contains(
      explained({"--score", "30 * tanh(score / 30) + bias[q][k]", "--capture", "bias=" + folder / "bias.npy"}),
      {"the score is the options softcap 30 and bias\n", "d score / d bias: 1.0 (an element a pair)\n"});
}

TEST_P(ExplainTexts, ThatAreMoreThanOptions) {
  const std::string how =
      std::string(GetParam()) == "cpu" ? "evaluated by vector instructions" : "compiled for the GPU";
  const TemporaryFolder folder;
  ASSERT_TRUE(io::write_npy(folder / "document.npy", io::make_tensor(DType::int32, {1024})).ok());
  const std::string text = explained({"--score", "score * 2", "--mask-text", "k <= q && document[k] == document[q]",
                                      "--capture", "document=" + folder / "document.npy"});
  expect_contains(text, {"a part of the mask is the option causal", "the score is " + how, "the mask is " + how,
                         "score: 2.0 * score\n", "d score / d score: 2.0\n"});
  EXPECT_FALSE(contains(text, "128 x 128 blocks of the mask")) << "documents are not known";
  expect_contains(explained({"--mask-text", "q / 512 == k / 512"}), {"32 empty, 32 full, 0 partial"});
}

TEST_P(ExplainTexts, InJson) {
  const TemporaryFolder folder;
  explained({"--mask-text", "k <= q", "--json", folder / "plan.json"});
  const nlohmann::json lines = nlohmann::json::parse(read_bytes(folder / "plan.json"))["explanation"];
  EXPECT_TRUE(std::ranges::find(lines, "texts         the mask is the option causal") != lines.end()) << lines;
}

TEST(ExplainNoTexts, SaysNothingOfThem) { EXPECT_FALSE(contains(run_program({"explain", "--causal"}).out, "texts")); }

}  // namespace
}  // namespace strobe::test
