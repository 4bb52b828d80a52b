// SPDX-License-Identifier: Apache-2.0
// The kernels that plans choose, compiled for each architecture: none keeps anything in local memory. Every seed is one
// kernel of one device, one shape and some options; seeds.h says how seeds are chosen.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "attention/random.h"
#include "attention/seeds.h"
#include "call/limits.h"
#include "expression/formula.h"
#include "gpu/auxiliary/append_variant.h"
#include "gpu/plan/devices.h"
#include "gpu/plan/plan_problem.h"
#include "kernels/sm80/forward/smem.h"
#include "runtime/embedded.h"
#include "runtime/kernel_store.h"
#include "runtime/pack/ptxas_report.h"
#include "sm80/backward_plan.h"
#include "sm80/backward_variant.h"
#include "sm80/forward_plan.h"
#include "sm80/forward_variant.h"
#include "sm80/supported.h"
#include "strobe/expression.h"

namespace strobe::test {
namespace {

AttentionProblem random_problem(Random& random) {
  const std::int64_t head_dim = random.one_of<std::int64_t>({32, 64, 64, 96, 128, 128, 128, 192, 256, 256});
  AttentionProblem problem = problem_of(4096, head_dim, head_dim == 192 ? 128 : head_dim);
  problem.dtype = random.one_of({DType::bfloat16, DType::float16, DType::float32});
  if (number_from("STROBE_FLOAT32", 0) != 0) problem.dtype = DType::float32;
  if (problem.dtype == DType::float32) problem.head_dim_v = std::min<std::int64_t>(problem.head_dim_v, 128);
  problem.causal = random.one_of({CausalMask::none, CausalMask::bottom_right});
  if (random.chance(0.25)) problem.window = {100, 50};
  if (random.chance(0.15)) problem.chunk = 200;
  if (random.chance(0.3)) problem.packed_q = problem.packed_k = true;
  if (random.chance(0.25)) problem.softcap = 30.0F;
  if (random.chance(0.25)) problem.dropout = 0.1F;
  if (random.chance(0.15)) problem.scale = -1.0F;
  problem.deterministic = random.chance(0.25);
  problem.modifiers.has_alibi = random.chance(0.25);
  problem.modifiers.has_bias = !problem.packed_q && random.chance(0.25);
  problem.modifiers.bias_dtype = random.one_of({DType::float32, problem.dtype});
  problem.modifiers.has_sink = random.chance(0.25);
  problem.wants_max_logits = random.chance(0.25);
  if (random.chance(0.25)) problem.modifiers.block_size = random.one_of<std::int64_t>({64, 128});
  if (problem.modifiers.block_size == 0 && random.chance(0.15)) {
    problem.has_tree_mask = true;
    problem.seqlen_q = 64;
    problem.total_q = problem.batch * problem.seqlen_q;
  }
  if (!sm80::check_supported(problem).ok()) problem.dropout = 0.0F;  // in float32, beside a bias or window
  problem.has_offsets = !problem.has_tree_mask && random.chance(0.15);
  return problem;
}

/// A few queries of grouped heads, and perhaps a cache: of the forward alone.
AttentionProblem few_queries_of(AttentionProblem problem, Random& random) {
  problem.heads_q = problem.heads_kv * random.one_of<std::int64_t>({1, 2, 4, 8});
  problem.seqlen_q = random.one_of<std::int64_t>({1, 4, 16});
  problem.total_q = problem.batch * problem.seqlen_q;
  problem.packed_k = false;
  if (random.chance(0.5)) {  // of calls that are not split
    problem.modifiers.has_bias = false;
    problem.modifiers.block_size = 0;
    problem.dropout = 0.0F;
  }
  if (random.chance(0.3)) problem.has_seqused_k = true;
  if (random.chance(0.3)) problem.page_size = random.one_of({12, 16});
  if (random.chance(0.2)) problem.has_leftpad_k = true;
  problem.has_cache_batch_idx = problem.page_size == 0 && random.chance(0.2);
  return problem;
}

/// What the backward takes of float32.
AttentionProblem narrow_floats(AttentionProblem problem) {
  if (problem.dtype == DType::float32) problem.head_dim = std::min<std::int64_t>(problem.head_dim, 128);
  return problem;
}

Result<runtime::Variant> forward_of(const AttentionProblem& problem, const gpu::DeviceShape& shape) {
  const Result<sm80::forward::Config> config = sm80::forward_config(problem, shape);
  if (!config.ok()) return config.status();
  return sm80::forward_variant(*config, shape);
}

/// A kernel of a plan for the gradients.
Result<runtime::Variant> gradient_variant_for(const AttentionProblem& problem, const gpu::DeviceShape& shape,
                                              Random& random) {
  const Result<sm80::backward::Config> config = sm80::backward_config(problem, shape);
  if (!config.ok()) return config.status();
  if (config->rule.bias && random.chance(0.5)) return sm80::bias_gradient_variant(*config, shape);
  return random.chance(0.2) ? sm80::finish_variant(*config, shape) : sm80::backward_variant(*config, shape);
}

/// A text in the place of a tree mask.
void set_text(AttentionProblem& problem, Random& random) {
  const auto& [score, mask] =
      random.one_of<std::pair<const char*, const char*>>({{"score + bias[head][q - k + q_len - 1]", ""},
                                                          {"30 * tanh(score / 30) + 0.1 * score", "k <= q || k < 512"},
                                                          {"", "k <= q && document[k] == document[q]"}});
  const std::vector<CaptureType> captures{{"bias", DType::float32, 2}, {"document", DType::int32, 1}};
  problem.expression.formula = ScoreFunction::parse(score, mask, captures)->formula();
}

/// A kernel of a plan for the problem, or of a few queries in its place: half of them of the forward.
Result<runtime::Variant> variant_for(const AttentionProblem& problem, const gpu::DeviceShape& shape, Random& random) {
  if (problem.has_tree_mask || random.chance(0.5)) {
    const bool few = random.chance(0.5);
    return forward_of(few ? few_queries_of(problem, random) : problem, shape);
  }
  return gradient_variant_for(narrow_floats(problem), shape, random);
}

class Sm80Compile : public testing::Test {
 protected:
  void SetUp() override {
    const Result<const runtime::Nvrtc*> nvrtc = runtime::nvrtc();
    if (!nvrtc.ok()) GTEST_SKIP() << nvrtc.status().message();
    nvrtc_ = *nvrtc;
    const Result<runtime::Archive> sources = runtime::Archive::parse(runtime::embedded_sources());
    ASSERT_TRUE(sources.ok());
    store_.emplace(*sources, std::vector<runtime::KernelPack>(), runtime::DiskCache(), runtime::nvrtc);
  }

  /// `most_bytes`: of registers that may be spilled.
  void expect_no_local_memory(const runtime::Variant& variant, int most_bytes = 0) const {
    std::string log;
    const Result<std::string> image = store_->compile(variant, *nvrtc_, &log);
    ASSERT_TRUE(image.ok()) << image.status().message();
    const std::optional<runtime::PtxasReport> report = runtime::parse_ptxas_log(log);
    ASSERT_TRUE(report.has_value()) << log;
    EXPECT_LE(report->spill_bytes, most_bytes);
    EXPECT_LE(report->stack_bytes, most_bytes);
  }

 private:
  const runtime::Nvrtc* nvrtc_ = nullptr;
  std::optional<runtime::KernelStore> store_;
};

TEST_F(Sm80Compile, KeepsEverythingInRegisters) {
  for (const std::uint64_t seed : chosen_seeds(12)) {
    Random random(seed);
    const NamedDevice& device = kDevices[seed % kDevices.size()];
    const AttentionProblem problem = random_problem(random);
    const Result<runtime::Variant> variant = variant_for(problem, device.shape, random);
    ASSERT_TRUE(variant.ok()) << variant.status().message();
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << device.name << ", " << variant->name);
    expect_no_local_memory(*variant);
    if (HasFailure()) return;
  }
}

// Heads of more than 256 columns. Beside O a text leaves registers for few options.
TEST_F(Sm80Compile, KeepsWideHeadsInRegisters) {
  for (const std::uint64_t seed : chosen_seeds(12)) {
    Random random(seed);
    const NamedDevice& device = kDevices[seed % kDevices.size()];
    AttentionProblem problem = random_problem(random);
    if (problem.dtype == DType::float32) problem.dtype = DType::bfloat16;
    problem.has_tree_mask = false;
    problem.head_dim = random.one_of<std::int64_t>({512, 512, 576, 64, 384});
    problem.head_dim_v = problem.head_dim == 384 ? 384 : 512;
    const bool forward = random.chance(0.5);
    if (!forward) {
      problem.head_dim = std::min<std::int64_t>(problem.head_dim, 512);
    } else if (random.chance(0.4)) {
      problem = few_queries_of(problem, random);
    }
    constexpr int kMostOfTexts = 48;
    const bool has_text = random.chance(0.4);
    if (has_text) set_text(problem, random);
    problem.row_invariant = forward && !has_text && problem.dropout == 0.0F && !problem.modifiers.has_bias &&
                            problem.modifiers.block_size == 0 && random.chance(0.3);
    problem.has_qv = forward && random.chance(0.3);
    if (problem.has_qv) problem.head_dim = kMaxHeadDim;  // qv's columns and those of q
    problem.pass = forward ? Pass::forward : Pass::backward;
    const Result<runtime::Variant> variant =
        forward ? forward_of(problem, device.shape) : gradient_variant_for(problem, device.shape, random);
    ASSERT_TRUE(variant.ok()) << variant.status().message();
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << device.name << ", " << variant->name);
    expect_no_local_memory(*variant, has_text ? kMostOfTexts : 0);
    if (HasFailure()) return;
  }
}

// K and V in 8 bits.
TEST_F(Sm80Compile, KeepsConvertedBlocksInRegisters) {
  for (const std::uint64_t seed : chosen_seeds(6)) {
    Random random(seed);
    const NamedDevice& device = kDevices[seed % kDevices.size()];
    AttentionProblem problem = random_problem(random);
    if (random.chance(0.5)) problem = few_queries_of(problem, random);
    if (problem.dtype == DType::float32) problem.dtype = DType::bfloat16;
    problem.stored = {random.one_of({DType::int8, DType::float8_e4m3}), 1, 1};
    const Result<sm80::forward::Config> config = sm80::forward_config(problem, device.shape);
    ASSERT_TRUE(config.ok()) << config.status().message();
    const runtime::Variant variant = sm80::forward_variant(*config, device.shape);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << device.name << ", " << variant.name);
    EXPECT_LE(smem_plan(*config).total_bytes, shared_bytes_of(device.shape, config->ctas_per_sm));
    expect_no_local_memory(variant);
    if (HasFailure()) return;
  }
}

// K and V in 8 bits of few queries, which are operands as they are.
TEST_F(Sm80Compile, KeepsStoredOperandsInRegisters) {
  for (const std::uint64_t seed : chosen_seeds(6)) {
    Random random(seed);
    const gpu::DeviceShape& shape = seed % 2 == 0 ? kH100 : kH200;
    AttentionProblem problem = few_queries_of(random_problem(random), random);
    problem.dtype = random.one_of({DType::float16, DType::bfloat16});
    problem.modifiers.has_bias = false;
    problem.modifiers.block_size = 0;
    problem.dropout = 0.0F;
    problem.stored = {random.one_of({DType::int8, DType::float8_e4m3}), problem.seqlen_k, problem.seqlen_k};
    if (problem.page_size == 0 && random.chance(0.5)) problem.stored.v_rows = 1;
    const Result<sm80::forward::Config> config = sm80::forward_config(problem, shape);
    ASSERT_TRUE(config.ok()) << config.status().message();
    const runtime::Variant variant = sm80::forward_variant(*config, shape);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << variant.name);
    EXPECT_TRUE(fields_agree(*config));
    EXPECT_LE(smem_plan(*config).total_bytes, shared_bytes_of(shape, config->ctas_per_sm));
    expect_no_local_memory(variant);
    if (HasFailure()) return;
  }
}

TEST_F(Sm80Compile, KeepsRowInvariantCallsInRegisters) {
  for (const std::uint64_t seed : chosen_seeds(6)) {
    Random random(seed);
    const NamedDevice& device = kDevices[seed % kDevices.size()];
    AttentionProblem problem = random_problem(random);
    if (random.chance(0.5)) problem = few_queries_of(problem, random);
    problem.row_invariant = true;
    problem.modifiers.has_bias = false;
    problem.modifiers.block_size = 0;
    problem.dropout = 0.0F;
    problem.batch = random.one_of<std::int64_t>({1, 4, 300});  // segments are parts, or a CTA's
    problem.total_q = problem.batch * problem.seqlen_q;
    const Result<sm80::forward::Config> config = sm80::forward_config(problem, device.shape);
    ASSERT_TRUE(config.ok()) << config.status().message();
    const runtime::Variant variant = sm80::forward_variant(*config, device.shape);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << device.name << ", " << variant.name);
    expect_no_local_memory(variant);
    if (HasFailure()) return;
  }
}

// Fields that registers or speed decide: explain() says what they are, and they may be others.
TEST_F(Sm80Compile, ChoicesAreExplainedAndMayBeOthers) {
  const gpu::DeviceShape& shape = kDevices[0].shape;
  const auto expect_choice = [&](const AttentionProblem& problem, auto change) {
    const Result<sm80::forward::Config> config = sm80::forward_config(problem, shape);
    ASSERT_TRUE(config.ok()) << config.status().message();
    sm80::ForwardPlan plan = sm80::forward_plan(problem, shape, *config);
    const std::string explained = explain(problem, shape, plan);
    change(plan.config);
    ASSERT_FALSE(plan.config == *config);
    EXPECT_NE(explain(problem, shape, plan), explained);
    expect_no_local_memory(sm80::forward_variant(plan.config, shape));
  };
  AttentionProblem decode = problem_of(4096, 128, 128);
  decode.heads_q = 4 * decode.heads_kv;
  decode.seqlen_q = 1;
  decode.total_q = decode.batch;
  decode.page_size = 16;
  expect_choice(decode, [](auto& c) {
    c.pages_ahead = !c.pages_ahead;
    c.page_rows = 1;
  });
  expect_choice(decode, [](auto& c) { c.page_rows = 1; });
  expect_choice(decode, [](auto& c) { c.copies_first = !c.copies_first; });
  decode.stored = {DType::int8, 1, 1};
  expect_choice(decode, [](auto& c) { c.chunks_at_once /= 2; });
  AttentionProblem causal = problem_of(4096, 64, 64);
  expect_choice(causal, [](auto& c) { c.keeps_work = !c.keeps_work; });
  causal.causal = CausalMask::bottom_right;
  expect_choice(causal, [](auto& c) { c.keeps_work = !c.keeps_work; });
}

TEST_F(Sm80Compile, KeepsAppendsInRegisters) {
  using enum Element;
  for (const std::uint64_t seed : chosen_seeds(6)) {
    Random random(seed);
    const NamedDevice& device = kDevices[seed % kDevices.size()];
    auxiliary::AppendConfig config{.source = random.one_of({bf16, fp16, fp32}),
                                   .cache = random.one_of({bf16, fp16, fp32, int8, e4m3}),
                                   .rotation = random.one_of({auxiliary::Rotation::none, auxiliary::Rotation::halves,
                                                              auxiliary::Rotation::interleaved}),
                                   .aligned = random.chance(0.7)};
    config.row_scales = bytes_of(config.cache) == 1 && random.chance(0.7);
    const runtime::Variant variant = gpu::append_variant(config, sm80::architecture_of(device.shape));
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << device.name << ", " << variant.name);
    expect_no_local_memory(variant);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace strobe::test
