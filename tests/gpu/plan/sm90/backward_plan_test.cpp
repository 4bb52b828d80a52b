// SPDX-License-Identifier: Apache-2.0
#include "sm90/backward_plan.h"
#include "gpu/variant/fields.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu/auxiliary/backward_variant.h"
#include "gpu/plan/plan_problem.h"
#include "kernels/sm90/backward/bias_gradient/config.h"
#include "kernels/sm90/backward/smem.h"
#include "kernels/sm90/tile/panel.h"
#include "sm90/backward_variant.h"

namespace strobe::sm90 {
namespace {

using test::grouped_causal;
using test::kH100;
using test::kH200;
using test::problem_of;

BackwardPlan backward_plan_of(const AttentionProblem& problem, const ScoreGradientLimits& limits = {}) {
  const auto config = backward_config(problem, kH200);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return backward_plan(problem, kH200, *config, {.limits = limits, .heads = part_heads(problem, kH200, *config)});
}

/// Every key block of every head in one launch, a head's in order.
void expect_all_key_blocks_once(const BackwardPlan& plan, std::int64_t heads) {
  std::vector<int> done(static_cast<std::size_t>(heads), 0);
  for (const BackwardLaunch& launch : plan.launches) {
    EXPECT_GT(launch.heads_kv * launch.key_blocks, 0);
    for (int head = launch.first_head_kv; head < launch.first_head_kv + launch.heads_kv; ++head) {
      ASSERT_LT(head, heads);
      EXPECT_EQ(done[static_cast<std::size_t>(head)], launch.first_key_block);
      done[static_cast<std::size_t>(head)] += launch.key_blocks;
    }
  }
  for (const int blocks : done) EXPECT_EQ(blocks, plan.params.n_blocks);
}

TEST(Sm90BackwardPlan, FitsForEveryHeadDim) {
  for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
    for (std::int64_t head_dim_v = 8; head_dim_v <= 256; head_dim_v += 8) {
      for (const bool deterministic : {false, true}) {
        AttentionProblem problem = problem_of(1000, head_dim, head_dim_v);
        problem.deterministic = deterministic;
        const BackwardPlan plan = backward_plan_of(problem);
        const backward::Config& config = plan.config;
        backward::Config debug = config;
        debug.debug = true;
        EXPECT_LE(smem_plan(debug).total_bytes, kMaxSmemBytes);
        EXPECT_GE(config.head_dim, head_dim);
        EXPECT_GE(config.head_dim_v, head_dim_v);
        EXPECT_LE(smem_plan(config).total_bytes, kMaxSmemBytes) << explain(problem, plan);
        EXPECT_LE(smem_plan(plan.query).total_bytes, kMaxSmemBytes);
        EXPECT_GE(plan.prepare.threads_per_row * 8, head_dim_v);
        EXPECT_LE(plan.prepare.threads_per_row, 32);
        EXPECT_GE(plan.params.m_blocks * config.block_m, 1000);
        EXPECT_GE(plan.params.n_blocks * block_n(config), 1000);
        const bool joint = head_dim_v <= 64 ? head_dim <= 128 : head_dim > 64 && std::max(head_dim, head_dim_v) <= 128;
        EXPECT_EQ(config.by_roles, !joint);
        EXPECT_EQ(config.ordered, joint && deterministic);
        expect_all_key_blocks_once(plan, 16);
      }
    }
  }
}

TEST(Sm90BackwardPlan, MemoryIsLinearInTheSequence) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const bool deterministic : {false, true}) {
      const auto bytes = [&](std::int64_t seqlen) {
        AttentionProblem problem = problem_of(seqlen, head_dim, head_dim);
        problem.deterministic = deterministic;
        const BackwardPlan plan = backward_plan_of(problem);
        expect_all_key_blocks_once(plan, 16);
        return plan.workspace.total_bytes;
      };
      const std::size_t at_most = bytes(64 << 10) + 16 * (4 * 256 + 8) * (std::size_t{64} << 10);
      EXPECT_LE(bytes(128 << 10), std::max(2 * bytes(64 << 10), at_most)) << head_dim;
      EXPECT_LE(bytes(1 << 20), std::size_t{40} << 30U) << head_dim;
    }
  }
}

TEST(Sm90BackwardPlan, ManyHeadsAndLongKeysAreSharedOut) {
  const AttentionProblem problem = problem_of(1000, 256, 256);
  const std::size_t head_bytes = 16 * 16 * backward::kScoreTileBytes;
  EXPECT_EQ(backward_plan_of(problem).launches.size(), 1U);
  const auto launches_of = [&](std::size_t bytes) {
    BackwardPlan plan = backward_plan_of(problem, {.bytes = bytes, .most_bytes = bytes});
    expect_all_key_blocks_once(plan, 16);
    return plan;
  };
  EXPECT_EQ(launches_of(16 * head_bytes).launches.size(), 1U);
  EXPECT_EQ(launches_of(16 * head_bytes - 1).launches.size(), 2U);
  EXPECT_EQ(launches_of(head_bytes).launches.size(), 16U);
  EXPECT_EQ(launches_of(head_bytes).workspace.dq_before, 0U);
  const BackwardPlan halves = launches_of(head_bytes - 1);
  EXPECT_EQ(halves.launches.size(), 32U);
  EXPECT_GT(halves.workspace.dq_before, halves.workspace.ds);
  EXPECT_EQ(launches_of(1).launches.size(), 16U * 16U);
}

struct GroupedSection {
  int multiprocessors;
  std::int64_t batch, heads_q, heads_kv, seqlen, head_dim;
  int section;  // key heads
};

class GroupedCausalSection : public testing::TestWithParam<GroupedSection> {};

TEST_P(GroupedCausalSection, HasAnItemForEachMultiprocessor) {
  const GroupedSection& c = GetParam();
  const AttentionProblem problem = grouped_causal(c.batch, c.heads_q, c.heads_kv, c.seqlen, c.head_dim);
  gpu::DeviceShape shape = kH200;
  shape.multiprocessors = c.multiprocessors;
  EXPECT_EQ(backward_plan(problem, shape, *backward_config(problem, shape)).params.section_heads, c.section);
}

INSTANTIATE_TEST_SUITE_P(
    Sm90BackwardPlan, GroupedCausalSection,
    testing::Values(GroupedSection{132, 8, 16, 4, 2048, 128, 8}, GroupedSection{132, 4, 16, 4, 4096, 128, 4},
                    GroupedSection{132, 2, 16, 4, 8192, 128, 2}, GroupedSection{132, 1, 16, 4, 16384, 128, 1},
                    GroupedSection{132, 1, 32, 8, 5120, 128, 4},     // 3 does not divide 8
                    GroupedSection{132, 1, 32, 8, 9216, 128, 2},     // 72 blocks a head
                    GroupedSection{132, 1, 28, 7, 8192, 128, 7},     // 7 is a prime: all
                    GroupedSection{132, 101, 4, 1, 8192, 128, 2},    // all would be too many
                    GroupedSection{132, 2, 32, 8, 8192, 64, 4},      // two waves at 64
                    GroupedSection{132, 256, 16, 4, 128, 128, 128},  // a block a head
                    GroupedSection{114, 1, 32, 8, 8192, 128, 2}, GroupedSection{78, 1, 32, 8, 8192, 128, 2},
                    GroupedSection{78, 1, 32, 8, 16384, 128, 1}));

/// log: bwd-sections-few, bwd-sections-ordered-l2, bwd-parts-ordered-long
TEST(Sm90BackwardPlan, SectionsFollowFromTheirNumberAndL2) {
  for (const DeviceShape& shape : {kH100, kH200}) {
    const auto plan = [&](std::int64_t batch, std::int64_t heads_q, std::int64_t heads_kv, std::int64_t seqlen,
                          std::int64_t head_dim, bool deterministic) {
      AttentionProblem problem = grouped_causal(batch, heads_q, heads_kv, seqlen, head_dim);
      problem.deterministic = deterministic;
      return backward_plan(problem, shape, *backward_config(problem, shape)).params;
    };
    EXPECT_EQ(plan(1, 32, 32, 2048, 128, false).section_heads, 8);
    EXPECT_EQ(plan(1, 40, 40, 2048, 128, false).section_heads, 10);
    EXPECT_EQ(plan(1, 2, 2, 2048, 128, false).section_heads, 2);
    EXPECT_EQ(plan(2, 32, 32, 8192, 64, true).section_heads, 8);
    EXPECT_EQ(plan(1, 32, 32, 16384, 64, true).section_heads, 4);
    EXPECT_LE(plan(1, 32, 32, 32768, 64, true).section_heads, 3);
    EXPECT_EQ(plan(1, 64, 8, 8192, 128, true).part_heads, 4);
    EXPECT_EQ(plan(1, 64, 8, 32768, 128, true).part_heads, 8);
  }
  // Many sections: the last one is a small part of the time.
  const AttentionProblem many = grouped_causal(8, 32, 32, 2048, 128);
  EXPECT_EQ(backward_plan(many, kH100, *backward_config(many, kH100)).params.section_heads, 10);
}

TEST(Sm90BackwardPlan, GroupedHeadsUnderACausalMaskFillTheDeviceBySections) {
  for (const std::int64_t seqlen : {128, 512, 2048, 16384}) {
    const AttentionProblem problem = grouped_causal(256, 16, 4, seqlen, 128);
    const BackwardPlan plan = backward_plan_of(problem);
    EXPECT_GE(10 * plan.params.section_heads * plan.params.n_blocks, 9 * kH200.multiprocessors);
    EXPECT_LE(plan.params.section_heads, problem.batch * problem.heads_kv);
  }
}

TEST(Sm90BackwardPlan, PackedSequencesUnderACausalMaskHaveSectionsByTheirMeanLength) {
  const auto section = [](AttentionProblem problem, std::int64_t tokens) {
    problem.packed_q = problem.packed_k = true;
    problem.total_q = problem.total_k = tokens;
    return backward_plan_of(problem).params.section_heads;
  };
  EXPECT_EQ(section(grouped_causal(2, 32, 8, 8192, 128), 16384), 2);
  EXPECT_EQ(section(grouped_causal(4, 32, 8, 4096, 128), 16384), 4);
  EXPECT_EQ(section(grouped_causal(6, 32, 8, 6000, 128), 16384), 7);  // 21 blocks on average; 7 of 56 heads
  EXPECT_EQ(section(grouped_causal(1, 32, 8, 16384, 128), 16384), 1);
  EXPECT_EQ(section(grouped_causal(2, 32, 8, 8192, 64), 16384), 4);
  EXPECT_EQ(section(grouped_causal(6, 16, 16, 6000, 128), 16384), 8);
}

TEST(Sm90BackwardPlan, ItemsThatShareKeysLeaveSums) {
  const auto plan_of = [](const AttentionProblem& problem, std::int64_t heads) {
    return backward_plan(problem, kH200, *backward_config(problem, kH200), {.limits = {}, .heads = {heads}});
  };
  for (const bool packed : {false, true}) {
    AttentionProblem problem = grouped_causal(2, 28, 4, 8192, 128);
    problem.packed_q = problem.packed_k = packed;
    problem.total_q = problem.total_k = packed ? 10000 : problem.total_k;
    const BackwardPlan whole = plan_of(problem, 7);
    EXPECT_FALSE(whole.config.shares_keys);
    EXPECT_EQ(whole.params.key_parts, 1);
    EXPECT_EQ(plan_of(problem, 100).workspace.total_bytes, whole.workspace.total_bytes);
    const BackwardPlan plan = plan_of(problem, 2);
    EXPECT_TRUE(plan.config.shares_keys);
    EXPECT_EQ(plan.params.key_parts, 4);  // of 2, 2, 2 and 1
    EXPECT_EQ(plan.params.part_heads, 2);
    const std::int64_t blocks = packed ? 10000 / 128 + 2 : 2 * 64;
    EXPECT_EQ(plan.params.key_sum_blocks, blocks);
    EXPECT_EQ(plan.workspace.total_bytes - whole.workspace.total_bytes, 4 * 4 * 4 * blocks * 128 * (128 + 128));
    EXPECT_NE(explain(problem, plan).find("2 of 7 query heads an item, 4 items share a block of keys"),
              std::string::npos);
    EXPECT_FALSE(query_sums_config(plan.config).shares_keys);
    EXPECT_FALSE(bias_gradient_config(plan.config).shares_keys);
  }
}

struct GroupedItem {
  std::int64_t batch, heads_q, heads_kv, seqlen, head_dim;
  bool causal, deterministic;
  std::int64_t heads;  // query heads of an item
};

class ItemHeads : public testing::TestWithParam<GroupedItem> {};

TEST_P(ItemHeads, FollowLengthsAndL2) {
  const GroupedItem& c = GetParam();
  AttentionProblem problem = grouped_causal(c.batch, c.heads_q, c.heads_kv, c.seqlen, c.head_dim);
  if (!c.causal) problem.causal = CausalMask::none;
  problem.deterministic = c.deterministic;
  for (const std::size_t l2_bytes : {std::size_t{50} << 20U, std::size_t{60} << 20U}) {  // of an H100 and an H200
    gpu::DeviceShape shape = kH200;
    shape.l2_bytes = l2_bytes;
    EXPECT_EQ(part_heads(problem, shape, *backward_config(problem, shape)).count, c.heads);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sm90BackwardPlan, ItemHeads,
    testing::Values(GroupedItem{1, 64, 8, 8192, 128, true, false, 4}, GroupedItem{1, 64, 8, 4096, 128, true, false, 4},
                    GroupedItem{8, 64, 8, 2048, 128, true, false, 4}, GroupedItem{1, 16, 1, 16384, 128, true, false, 4},
                    GroupedItem{1, 40, 8, 8192, 128, true, false, 3}, GroupedItem{1, 48, 8, 8192, 128, true, false, 3},
                    GroupedItem{1, 28, 4, 8192, 128, true, false, 4},   // and of 3
                    GroupedItem{1, 64, 8, 32768, 128, true, false, 2},  // the rows of a head are 32 MB
                    GroupedItem{1, 28, 4, 4096, 128, true, false,
                                2},  // few items: the longest would take longer than all of them
                    GroupedItem{1, 32, 2, 4096, 128, true, false, 2}, GroupedItem{1, 32, 1, 2048, 128, true, false, 2},
                    GroupedItem{1, 32, 8, 4096, 128, true, false, 4}, GroupedItem{4, 16, 4, 4096, 128, true, false, 4},
                    GroupedItem{1, 32, 1, 2048, 128, false, false, 4},
                    GroupedItem{1, 32, 2, 4096, 128, false, false, 8},
                    GroupedItem{1, 64, 8, 8192, 128, false, false, 8}, GroupedItem{1, 64, 8, 8192, 64, true, false, 4},
                    GroupedItem{1, 28, 4, 8192, 64, true, false, 4}, GroupedItem{1, 64, 8, 8192, 128, true, true, 4},
                    GroupedItem{1, 32, 8, 8192, 64, true, true, 4}, GroupedItem{1, 32, 8, 16384, 64, true, true, 2},
                    GroupedItem{1, 64, 8, 4096, 128, true, true, 4},    // by roles
                    GroupedItem{1, 40, 8, 8192, 128, true, true, 5}));  // in order, parts would not be even

struct OrderedSection {
  std::int64_t batch, heads_q, heads_kv, seqlen, head_dim, section_heads;
};

TEST(Sm90BackwardPlan, SectionsOfSumsInOrderFollowL2AndGroups) {
  gpu::DeviceShape shape = kH200;
  shape.l2_bytes = std::size_t{50} << 20U;
  for (const OrderedSection& c : {OrderedSection{8, 16, 16, 2048, 128, 16}, OrderedSection{4, 16, 16, 4096, 128, 16},
                                  OrderedSection{1, 32, 32, 8192, 128, 8}, OrderedSection{1, 32, 32, 16384, 128, 8},
                                  OrderedSection{1, 32, 32, 2048, 64, 16}, OrderedSection{1, 32, 32, 16384, 64, 4},
                                  OrderedSection{4, 32, 8, 2048, 64, 32}, OrderedSection{1, 32, 8, 16384, 64, 8},
                                  OrderedSection{1, 32, 8, 16384, 128, 8}}) {
    AttentionProblem problem = grouped_causal(c.batch, c.heads_q, c.heads_kv, c.seqlen, c.head_dim);
    problem.deterministic = true;
    const backward::Config config = *backward_config(problem, kH200);
    EXPECT_TRUE(config.ordered);
    EXPECT_EQ(config.alternates, c.head_dim == 64);
    EXPECT_EQ(backward_plan(problem, shape, config, gpu::Choice{}).params.section_heads, c.section_heads)
        << c.seqlen << ' ' << c.head_dim;
  }
}

/// log: bwd-ordered-default
TEST(Sm90BackwardPlan, LongSequencesOfNarrowHeadsAreAddedUpInOrder) {
  const auto in_order = [](std::int64_t heads, std::int64_t heads_kv, std::int64_t seqlen, std::int64_t head_dim) {
    return backward_config(grouped_causal(1, heads, heads_kv, seqlen, head_dim), kH200)->ordered;
  };
  EXPECT_TRUE(in_order(16, 16, 8192, 64));
  EXPECT_TRUE(in_order(8, 8, 16384, 40));
  EXPECT_FALSE(in_order(128, 128, 4096, 64));  // short
  EXPECT_FALSE(in_order(8, 8, 8192, 64));      // few blocks, which wait for one another
  EXPECT_FALSE(in_order(32, 8, 16384, 64));    // grouped
  EXPECT_FALSE(in_order(32, 32, 16384, 128));
  AttentionProblem problem = grouped_causal(1, 32, 32, 16384, 64);
  problem.window.left = 1000;
  EXPECT_FALSE(backward_config(problem, kH200)->ordered);
  problem = grouped_causal(1, 32, 32, 16384, 64);
  problem.causal = CausalMask::none;
  EXPECT_FALSE(backward_config(problem, kH200)->ordered);
}

TEST(Sm90BackwardPlan, SomeProblemsTakeNoParts) {
  const auto parts_of = [](const AttentionProblem& problem) {
    return backward_plan(problem, kH200, *backward_config(problem, kH200), {.limits = {}, .heads = {1}})
        .params.key_parts;
  };
  AttentionProblem problem = grouped_causal(1, 16, 2, 4096, 128);
  EXPECT_EQ(parts_of(problem), 8);
  problem.modifiers.block_size = 128;  // a part's query heads may see none of the keys
  EXPECT_EQ(parts_of(problem), 1);
  problem = grouped_causal(1, 16, 2, 4096, 128);
  problem.seqlen_q = problem.total_q = 0;
  EXPECT_EQ(parts_of(problem), 1);
  EXPECT_EQ(parts_of(grouped_causal(1, 16, 16, 4096, 128)), 1);
}

TEST(Sm90BackwardPlan, ASectionHasAHeadHoweverLongItIs) {
  for (const bool deterministic : {false, true}) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      AttentionProblem problem = problem_of(1 << 20, head_dim, head_dim);
      problem.deterministic = deterministic;
      problem.heads_q = 64;
      problem.heads_kv = 2;
      EXPECT_EQ(backward_plan_of(problem).params.section_heads, 1);
    }
  }
}

TEST(Sm90BackwardPlan, NothingToComputeIsNoLaunch) {
  AttentionProblem problem = problem_of(64, 64, 64);
  problem.batch = 0;
  problem.total_q = problem.total_k = 0;
  EXPECT_TRUE(backward_plan_of(problem).launches.empty());
  EXPECT_EQ(backward_plan_of(problem).workspace.total_bytes, 0U);
  problem = problem_of(64, 64, 64);
  problem.heads_q = problem.heads_kv = 0;
  EXPECT_TRUE(backward_plan_of(problem).launches.empty());
  problem = problem_of(64, 64, 64);
  problem.seqlen_q = problem.total_q = 0;  // zeros for the keys
  EXPECT_EQ(backward_plan_of(problem).launches.size(), 1U);
  problem.seqlen_k = problem.total_k = 0;
  EXPECT_TRUE(backward_plan_of(problem).launches.empty());
}

TEST(Sm90BackwardPlan, UnsupportedOptionsAreNamed) {
  const auto message = [](auto change) {
    AttentionProblem problem = problem_of(64, 64, 64);
    problem.pass = Pass::backward;
    change(problem);
    return std::string(backward_config(problem, kH200).status().message());
  };
  EXPECT_EQ(message([](AttentionProblem& p) { p.dtype = DType::float32; }),
            "q is float32: the sm90 kernels compute in float16 and bfloat16; the sm80 kernels take it");
  EXPECT_EQ(message([](AttentionProblem& p) { p.has_qv = true; }),
            "qv is given: the gpu engine has no gradients of it; the cpu engine has");
  EXPECT_EQ(message([](AttentionProblem& p) { p.head_dim = 520; }),
            "head_dim is 520: the gpu engine takes multiples of 8 up to 512, the cpu engine all up to 576");
  EXPECT_EQ(message([](AttentionProblem& p) {
              p.batch = 1 << 24;
              p.seqlen_q = 128 * 300;
            }),
            "40265318400 backward tiles of 128 query rows: the sm90 kernels take up to 2147483647");
  EXPECT_EQ(message([](AttentionProblem& p) { p.deterministic = true; }), "");
}

TEST(BackwardVariant, IsSpelledFieldByField) {
  backward::Config config;
  config.rule.mask_right = true;
  config.by_roles = true;
  const runtime::Variant variant = backward_variant(config);
  EXPECT_EQ(variant.name, "sm90 backward (mask_right, by_roles)");
  EXPECT_EQ(variant.include, "kernels/sm90/backward/roles/kernel.h");
  EXPECT_EQ(variant.expression,
            std::string("strobe::sm90::backward::roles_kernel<strobe::sm90::backward::Config{.rule = ") +
                gpu::cpp_text(config.rule) +
                ", .head_dim = 128, .head_dim_v = 128, .block_m = 64, .q_stages = 3, .do_stages = 3, "
                ".by_roles = true, .wide = false, .register_columns = 0, .staged_dq = true, .ordered = false, "
                ".alternates = false, .p_stages = 2, "
                ".ds_stages = 2, .shares_keys = false, .bias_stages = 0, .dp_ahead = false, .captures = false, .debug "
                "= false}>");
  EXPECT_EQ(
      gpu::prepare_variant({.element = Element::fp16, .varlen = true}, "sm_90a").expression,
      "strobe::auxiliary::prepare_backward<strobe::auxiliary::PrepareBackwardConfig{.element = strobe::Element::fp16, "
      ".varlen = true, .offsets = false, .threads_per_row = 16, .two_chunks = false, .normalized = true}>");
}

}  // namespace
}  // namespace strobe::sm90
