// SPDX-License-Identifier: Apache-2.0
// strobe run and verify with everything that joins the scores: flags in, the library's call out.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "files.h"
#include "io/npy.h"
#include "program.h"
#include "reference/bound/reference.h"
#include "runtime/temporary_folder.h"

namespace strobe::test {
namespace {

constexpr std::int64_t kBatch = 2, kQueries = 70, kKeys = 90, kHeads = 6, kHeadDim = 16;

io::HostTensor floats(const std::vector<float>& values) {
  io::HostTensor tensor = io::make_tensor(DType::float32, {static_cast<std::int64_t>(values.size())});
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

/// Two blocks of queries and two of keys; the second queries do not see the first keys.
io::HostTensor block_mask() {
  io::HostTensor mask = io::make_tensor(DType::uint8, {1, 1, 2, 2});
  for (const std::size_t visible : {0, 1, 3}) mask.bytes[visible] = std::byte{1};
  return mask;
}

class RunWithModifiers : public ::testing::Test {
 protected:
  RunWithModifiers() {
    save("q", q_);
    save("k", k_);
    save("v", v_);
    save("do", d_o_);
    save("bias", bias_);
    save("sink", sink_);
    save("blocks", blocks_);
  }

  void save(const std::string& name, const io::HostTensor& tensor) {
    EXPECT_TRUE(io::write_npy(file(name), tensor).ok());
  }
  std::string file(const std::string& name) const { return folder_ / (name + ".npy"); }

  io::HostTensor result(const std::string& name) const {
    Result<io::HostTensor> tensor = io::read_npy(folder_ / ("out/" + name + ".npy"));
    EXPECT_TRUE(tensor.ok()) << tensor.status().message();
    return tensor.ok() ? std::move(*tensor) : io::HostTensor{};
  }

  std::vector<std::string> arguments(const std::vector<std::string>& more) const {
    std::vector<std::string> all{"run",     "--q",  file("q"),  "--k",   file("k"),      "--v",
                                 file("v"), "--do", file("do"), "--out", folder_ / "out"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  TemporaryFolder folder_;
  io::HostTensor q_ = normal_tensor(DType::float32, {kBatch, kQueries, kHeads, kHeadDim}, 1);
  io::HostTensor k_ = normal_tensor(DType::float32, {kBatch, kKeys, kHeads, kHeadDim}, 2);
  io::HostTensor v_ = normal_tensor(DType::float32, {kBatch, kKeys, kHeads, kHeadDim}, 3);
  io::HostTensor d_o_ = normal_tensor(DType::float32, {kBatch, kQueries, kHeads, kHeadDim}, 4);
  io::HostTensor bias_ = normal_tensor(DType::float32, {1, kHeads, kQueries, kKeys}, 5);
  io::HostTensor sink_ = normal_tensor(DType::float32, {kHeads}, 6);
  io::HostTensor blocks_ = block_mask();
  // Six heads: those of four, then every other one of eight.
  io::HostTensor slopes_ = floats({0x1p-2F, 0x1p-4F, 0x1p-6F, 0x1p-8F, 0x1p-1F, 0x1p-3F});
};

TEST_F(RunWithModifiers, EveryFlagReachesTheCall) {
  const Outcome outcome = run_program(arguments(
      {"--alibi", "--bias", file("bias"), "--sink", file("sink"), "--block-mask", file("blocks"), "--block-size", "64",
       "--dropout", "0.25", "--seed", "11", "--chunk", "40", "--row-invariant", "--max-logits"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  io::HostTensor o = result("o"), lse = result("lse"), largest = result("max_logits");
  io::HostTensor dq = result("dq"), dk = result("dk"), dv = result("dv");
  io::HostTensor d_bias = result("dbias"), d_sink = result("dsink");

  const ScoreModifiers modifiers{.alibi_slopes = view(slopes_),
                                 .bias = view(bias_),
                                 .sink = view(sink_),
                                 .block_mask = view(blocks_),
                                 .block_size = 64};
  const AttentionOptions options{.chunk = 40, .dropout = 0.25F};
  const ForwardArguments forward{.q = view(q_),
                                 .k = view(k_),
                                 .v = view(v_),
                                 .o = view(o),
                                 .lse = view(lse),
                                 .modifiers = modifiers,
                                 .random = {.seed = 11},
                                 .max_logits = view(largest)};
  const reference::ForwardResult expected = reference::forward(forward, options);
  expect_within_bound(o, expected.o, "O");
  expect_within_bound(lse, expected.lse, "LSE");
  expect_within_bound(largest, expected.max_logits, "max_logits");
  const BackwardArguments backward{.q = view(q_),
                                   .k = view(k_),
                                   .v = view(v_),
                                   .o = view(o),
                                   .lse = view(lse),
                                   .d_o = view(d_o_),
                                   .dq = view(dq),
                                   .dk = view(dk),
                                   .dv = view(dv),
                                   .modifiers = modifiers,
                                   .random = {.seed = 11},
                                   .d_bias = view(d_bias),
                                   .d_sink = view(d_sink)};
  const reference::BackwardResult gradients = reference::backward(backward, options);
  expect_within_bound(dq, gradients.dq, "dQ");
  expect_within_bound(dk, gradients.dk, "dK");
  expect_within_bound(dv, gradients.dv, "dV");
  expect_within_bound(d_bias, gradients.d_bias, "dBias");
  expect_within_bound(d_sink, gradients.d_sink, "dSink");
}

TEST_F(RunWithModifiers, TextsAndTheirCapturesReachTheCall) {
  io::HostTensor slopes = floats({1.0F, 0.5F, 0.25F, 0.125F, 0.0625F, 0.0F});
  io::HostTensor limit = io::make_tensor(DType::int32, {kHeads});
  save("slopes", slopes);
  save("limit", limit);
  const char* const score = "score + slope[head] * (k - q)";
  const char* const mask = "k - q <= 20 + limit[head]";
  const Outcome outcome = run_program(arguments({"--score", score, "--mask-text", mask, "--capture",
                                                 "slope=" + file("slopes"), "--capture", "limit=" + file("limit")}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find(score), std::string::npos) << outcome.out;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/d_limit.npy"));
  io::HostTensor o = result("o"), lse = result("lse"), dq = result("dq"), dk = result("dk"), dv = result("dv");
  io::HostTensor d_slope = result("d_slope");

  const Result<ScoreFunction> function =
      ScoreFunction::parse(score, mask, {{"slope", DType::float32, 1}, {"limit", DType::int32, 1}});
  ASSERT_TRUE(function.ok());
  const ConstTensorView captures[] = {view(slopes), view(limit)};
  const TensorView gradients[] = {view(d_slope), {}};
  const ScoreModifiers modifiers{.function = &*function, .captures = captures};
  const reference::ForwardResult expected = reference::forward(
      {.q = view(q_), .k = view(k_), .v = view(v_), .o = view(o), .lse = view(lse), .modifiers = modifiers});
  expect_within_bound(o, expected.o, "O");
  const reference::BackwardResult backward = reference::backward({.q = view(q_),
                                                                  .k = view(k_),
                                                                  .v = view(v_),
                                                                  .o = view(o),
                                                                  .lse = view(lse),
                                                                  .d_o = view(d_o_),
                                                                  .dq = view(dq),
                                                                  .dk = view(dk),
                                                                  .dv = view(dv),
                                                                  .modifiers = modifiers,
                                                                  .d_captures = gradients});
  expect_within_bound(dq, backward.dq, "dQ");
  expect_within_bound(d_slope, backward.d_captures[0], "dSlope");
}

// A capture without an index is one element, in a file of any rank; integers may have 64 bits.
TEST_F(RunWithModifiers, TextsReadScalarsAndWideIntegers) {
  io::HostTensor document = io::make_tensor(DType::int64, {kKeys});
  for (std::size_t i = 40; i < kKeys; ++i) document.bytes[i * sizeof(std::int64_t)] = std::byte{1};
  io::HostTensor cap = floats({5.0F}), shift = floats({0.5F});
  save("cap", cap);
  save("document", document);
  std::ofstream(file("shift"), std::ios::binary)
      << npy_bytes(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (), }", std::string("\0\0\0\x3f", 4));
  const Words texts{"--score", "cap * tanh(score / cap) + shift * k", "--mask-text", "document[k] == document [q]"};
  const Words captures{"--capture", "cap=" + file("cap"),          "--capture", "shift=" + file("shift"),
                       "--capture", "document=" + file("document")};
  const Outcome outcome = run_program(arguments(texts + captures));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  io::HostTensor o = result("o"), lse = result("lse");
  EXPECT_EQ(result("d_cap").shape, std::vector<std::int64_t>{1});
  EXPECT_EQ(result("d_shift").shape, std::vector<std::int64_t>{1});
  const Result<ScoreFunction> function = ScoreFunction::parse(
      texts[1], texts[3], {{"cap", DType::float32, 0}, {"shift", DType::float32, 0}, {"document", DType::int64, 1}});
  ASSERT_TRUE(function.ok()) << function.status().message();
  const ConstTensorView views[] = {view(cap), view(shift), view(document)};
  const ScoreModifiers modifiers{.function = &*function, .captures = views};
  const reference::ForwardResult expected = reference::forward(
      {.q = view(q_), .k = view(k_), .v = view(v_), .o = view(o), .lse = view(lse), .modifiers = modifiers});
  expect_within_bound(o, expected.o, "O");

  document.bytes[7 * sizeof(std::int64_t) + 4] = std::byte{1};
  save("document", document);
  const Outcome rejected = run_program(arguments(texts + captures));
  EXPECT_EQ(rejected.exit_code, 2);
  EXPECT_TRUE(contains(rejected.err, "capture `document`[7] is 4294967296: integers of texts have 32 bits"));
}

TEST_F(RunWithModifiers, WrongTextsAreRejected) {
  expect_rejection(run_program(arguments({"--mask", "k <= q"})), 2,
                   "there is no flag '--mask'; did you mean --mask-text?");
  expect_rejection(run_program(arguments({"--score", "score + slopes[head]", "--capture", "slope=" + file("sink")})), 2,
                   "--capture slope: no text reads it: leave it out");
  expect_rejection(run_program(arguments({"--score", "scores"})), 2, "did you mean `score`? at column 1");
  expect_rejection(run_program(arguments({"--score", "score", "--capture", "slope"})), 2, "give NAME=FILE");
  expect_rejection(run_program(arguments({"--capture", "slope=" + file("sink")})), 2, "give --score or --mask-text");
  expect_rejection(run_program(arguments({"--score", "score + slope", "--capture", "slope=" + file("sink")})), 2,
                   "`slope` has 1 dimension");
}

TEST_F(RunWithModifiers, WritesOnlyWhatWasAskedFor) {
  ASSERT_EQ(run_program(arguments({"--alibi"})).exit_code, 0);
  for (const char* const name : {"max_logits", "dbias", "dsink"}) {
    EXPECT_FALSE(std::filesystem::exists(folder_ / (std::string("out/") + name + ".npy"))) << name;
  }
}

TEST_F(RunWithModifiers, WrongFilesAreRejected) {
  expect_rejection(run_program(arguments({"--bias", file("none")})), 2, "none.npy");
  expect_rejection(run_program(arguments({"--bias", file("sink")})), 2, "bias");
  expect_rejection(run_program(arguments({"--sink", file("bias")})), 2, "sink");
  expect_rejection(run_program(arguments({"--block-mask", file("blocks")})), 2, "block_mask");
  expect_rejection(run_program(arguments({"--block-mask", file("blocks"), "--block-size", "32"})), 2, "block_size");
  expect_rejection(run_program(arguments({"--dropout", "1"})), 2, "dropout");
  expect_rejection(run_program(arguments({"--chunk", "-1"})), 2, "chunk");
}

TEST(VerifyWithModifiers, PassesWithoutStandardAttention) {
  const Outcome outcome = run_program({"verify", "--seqlen", "60", "--heads", "2", "--head-dim", "16", "--dtype",
                                       "float32", "--alibi", "--dropout", "0.5", "--max-logits"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("ALiBi"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find(" max "), std::string::npos) << outcome.out;
}

TEST(VerifyWithModifiers, ComparesTheGradientsOfCaptures) {
  const TemporaryFolder folder;
  const std::string path = folder / "slope.npy";
  ASSERT_TRUE(io::write_npy(path, floats({0.5F, 0.25F})).ok());
  const Outcome outcome = run_program({"verify", "--seqlen", "60", "--heads", "2", "--head-dim", "16", "--dtype",
                                       "float32", "--score", "5 * tanh(score / 5) + slope[head] * (k - q)",
                                       "--mask-text", "k <= q", "--capture", "slope=" + path});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find(" d_slope "), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace strobe::test
