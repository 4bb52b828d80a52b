// SPDX-License-Identifier: Apache-2.0
// Few queries: heads that share tiles, groups of warps that take turns at the keys, and keys shared out among CTAs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "gpu/plan/devices.h"
#include "gpu/plan/plan_problem.h"
#include "kernels/sm80/forward/smem.h"
#include "plan_options.h"
#include "sm80/forward_plan.h"

namespace strobe::sm80 {
namespace {

using test::kDevices;

constexpr DeviceShape kFewOnA100 = test::device_named("A100");
constexpr DeviceShape kFewOnRtx4090 = test::device_named("RTX 4090");
constexpr DeviceShape kFewOnH200 = test::kH200;

struct FewShape {
  std::int64_t batch, queries, keys, heads_q, heads_kv, head_dim;
};

AttentionProblem few_problem(const FewShape& shape) {
  AttentionProblem problem = test::problem_of(shape.keys, shape.head_dim, shape.head_dim);
  problem.batch = shape.batch;
  problem.heads_q = shape.heads_q;
  problem.heads_kv = shape.heads_kv;
  problem.seqlen_q = shape.queries;
  problem.total_q = shape.batch * shape.queries;
  problem.total_k = shape.batch * shape.keys;
  return problem;
}

ForwardPlan few_plan(const AttentionProblem& problem, const DeviceShape& shape) {
  return forward_plan(problem, shape, *forward_config(problem, shape));
}

// Packed rows that are all behind the last sequence, whose bound is then 0.
TEST(Sm80FewQueries, PartsHaveARowWhereNoSequenceHasOne) {
  for (const DeviceShape& shape : {kFewOnA100, kFewOnRtx4090, kFewOnH200}) {
    AttentionProblem problem =
        few_problem({.batch = 1, .queries = 0, .keys = 1844, .heads_q = 5, .heads_kv = 1, .head_dim = 128});
    problem.packed_q = problem.packed_k = true;
    problem.total_q = 8;
    const ForwardPlan plan = few_plan(problem, shape);
    ASSERT_TRUE(splits(plan.config));
    EXPECT_EQ(plan.split.slot_rows, 1);
  }
}

// A server's captured step: any sequence may have all queries, which on average are one each.
TEST(Sm80FewQueries, TilesAreOfAsManyRowsAsPackedSequencesHaveOnAverage) {
  AttentionProblem problem =
      few_problem({.batch = 8, .queries = 8, .keys = 4096, .heads_q = 32, .heads_kv = 8, .head_dim = 128});
  const auto rows_of_tiles = [&](auto change) {
    AttentionProblem other = problem;
    change(other);
    return block_m(few_plan(other, kFewOnH200).config);
  };
  EXPECT_EQ(rows_of_tiles([](AttentionProblem&) {}), 32);  // eight queries each
  problem.packed_q = true;
  problem.total_q = 8;
  EXPECT_EQ(rows_of_tiles([](AttentionProblem&) {}), 16);
  EXPECT_EQ(rows_of_tiles([](AttentionProblem& other) { other.row_invariant = true; }), 32);
  EXPECT_GT(rows_of_tiles([](AttentionProblem& other) { other.seqlen_q = other.total_q = 32; }), 64);
  EXPECT_EQ(few_plan(problem, kFewOnH200).order.m_tiles, 2);  // of a sequence that has them all
}

// K and V in 8 bits. Before compute capability 9.0: the tiles of 16-bit ones, so that results have their bits, with
// more blocks on their way.
TEST(Sm80FewQueries, StoredKeysTakeTheSameTiles) {
  for (const DeviceShape& shape : {kFewOnA100, kFewOnRtx4090}) {
    AttentionProblem problem =
        few_problem({.batch = 8, .queries = 1, .keys = 8192, .heads_q = 8, .heads_kv = 2, .head_dim = 128});
    const ForwardPlan wide = few_plan(problem, shape);
    problem.stored = {.dtype = DType::int8, .k_rows = 1, .v_rows = 1};
    const ForwardPlan plan = few_plan(problem, shape);
    EXPECT_EQ(plan.config.stored, Element::int8);
    EXPECT_EQ(plan.config.key_groups, wide.config.key_groups);
    EXPECT_EQ(plan.config.rows_per_warp, wide.config.rows_per_warp);
    EXPECT_GE(plan.config.stages, wide.config.stages);
    EXPECT_NE(explain(problem, shape, plan).find("stored K, V   int8; converted to bfloat16"), std::string::npos);
    problem.head_dim = 72;
    EXPECT_EQ(forward_config(problem, shape).status().message(),
              "head_dim is 72 and k is int8: the sm80 kernels take multiples of 16; the cpu engine takes any");
  }
}

// From 9.0 on they are operands, whose scales are a head's or keys'.
TEST(Sm80FewQueries, StoredKeysAreOperands) {
  for (const std::int64_t head_dim : {32, 64, 96, 128, 192, 256}) {
    for (const std::int64_t queries : {1, 5, 9, 16}) {
      AttentionProblem problem = few_problem(
          {.batch = 8, .queries = queries, .keys = 8192, .heads_q = 8, .heads_kv = 2, .head_dim = head_dim});
      problem.stored = {.dtype = DType::float8_e4m3, .k_rows = 8192, .v_rows = 8192};
      const ForwardPlan plan = few_plan(problem, kFewOnH200);
      EXPECT_TRUE(plan.config.stored_operands);
      EXPECT_FALSE(plan.config.row_scales);
      EXPECT_TRUE(fields_agree(plan.config));
      EXPECT_LE(smem_plan(plan.config).total_bytes, shared_bytes_of(kFewOnH200, plan.config.ctas_per_sm));
      EXPECT_NE(explain(problem, kFewOnH200, plan)
                    .find("stored K, V   float8_e4m3; operands as float16, whose scales, "
                          "of a head, join scores and O"),
                std::string::npos);
      problem.stored.v_rows = 32;
      const ForwardPlan by_rows = few_plan(problem, kFewOnH200);
      EXPECT_TRUE(by_rows.config.stored_operands && by_rows.config.row_scales && fields_agree(by_rows.config));
    }
  }
  // Many rows, and options of tiles that compute as long as they read, are converted.
  AttentionProblem many =
      few_problem({.batch = 8, .queries = 100, .keys = 8192, .heads_q = 8, .heads_kv = 2, .head_dim = 128});
  many.stored = {.dtype = DType::int8, .k_rows = 8192, .v_rows = 8192};
  EXPECT_FALSE(few_plan(many, kFewOnH200).config.stored_operands);
}

// log: stored-32-rows-eight-groups
TEST(Sm80FewQueries, RowsOfPagesIn8BitsHaveAsManyGroupsAsContiguousOnes) {
  AttentionProblem problem =
      few_problem({.batch = 32, .queries = 8, .keys = 16384, .heads_q = 32, .heads_kv = 8, .head_dim = 128});
  problem.stored = {.dtype = DType::float8_e4m3, .k_rows = 16384, .v_rows = 16384};
  const forward::Config contiguous = few_plan(problem, kFewOnH200).config;
  problem.page_size = 16;
  problem.has_seqused_k = true;
  const forward::Config pages = few_plan(problem, kFewOnH200).config;
  EXPECT_EQ(pages.key_groups, 8);
  EXPECT_EQ(pages.key_groups, contiguous.key_groups);
  EXPECT_EQ(pages.rows_per_warp, contiguous.rows_per_warp);
  EXPECT_EQ(pages.block_n, contiguous.block_n);
}

// log: stored-half-lines-side-by-side
TEST(Sm80FewQueries, RowsOfHalfLinesHaveWholeRoundsOfParts) {
  const auto plan_of = [](std::int64_t batch, std::int64_t head_dim, bool pages) {
    AttentionProblem problem =
        few_problem({.batch = batch, .queries = 1, .keys = 16384, .heads_q = 32, .heads_kv = 8, .head_dim = head_dim});
    problem.stored = {.dtype = DType::float8_e4m3, .k_rows = 16384, .v_rows = 16384};
    if (pages) problem.page_size = 16;
    problem.has_seqused_k = pages;
    return few_plan(problem, kFewOnH200);
  };
  EXPECT_EQ(plan_of(32, 64, true).workers, 264);
  EXPECT_EQ(plan_of(32, 128, true).workers, 132);
  EXPECT_EQ(plan_of(32, 64, false).workers, 256);  // the tiles
  EXPECT_EQ(plan_of(32, 64, false).config.schedule, Schedule::rounds);
  EXPECT_EQ(plan_of(1, 64, true).workers, 132);
}

TEST(Sm80FewQueries, FitEveryDevice) {
  for (const auto& [name, shape] : kDevices) {
    for (const std::int64_t head_dim : {8, 40, 64, 96, 128, 192, 256}) {
      for (const std::int64_t queries : {1, 2, 4, 5, 16}) {
        for (const std::int64_t heads_kv : {1, 2, 8}) {
          const FewShape few{
              .batch = 3, .queries = queries, .keys = 5000, .heads_q = 8, .heads_kv = heads_kv, .head_dim = head_dim};
          for (const AttentionProblem& problem : test::problems_with_options(few_problem(few))) {
            const ForwardPlan plan = few_plan(problem, shape);
            const forward::Config& config = plan.config;
            SCOPED_TRACE(std::string(name) + "\n" + explain(problem, shape, plan));
            EXPECT_LE(smem_plan(config).total_bytes, shared_bytes_of(shape, config.ctas_per_sm));
            EXPECT_EQ(config.warps % config.key_groups, 0);
            EXPECT_TRUE(config.key_groups == 1 || config.stages > 1);
            EXPECT_LE(plan.workers, splits(config) ? shape.multiprocessors * config.ctas_per_sm : plan.tiles);
            EXPECT_EQ(plan.split.total_bytes > 0, splits(config));
            EXPECT_GE(plan.order.m_tiles * block_m(config), queries * config.packed_heads);
            EXPECT_EQ(plan.order.heads * config.packed_heads, problem.heads_q);
          }
        }
      }
    }
  }
}

TEST(Sm80FewQueries, ShareTheTilesOfTheirKeyHead) {
  const auto config_of = [](std::int64_t queries, std::int64_t heads_q) {
    return *forward_config(few_problem({1, queries, 4096, heads_q, 8, 128}), kFewOnA100);
  };
  EXPECT_EQ(config_of(1, 32).packed_heads, 4);
  EXPECT_EQ(block_m(config_of(1, 32)), 16);
  EXPECT_EQ(block_m(config_of(4, 32)), 16);
  EXPECT_EQ(block_m(config_of(5, 32)), 32);
  EXPECT_EQ(block_m(config_of(16, 32)), 64);
  EXPECT_EQ(config_of(1, 8).packed_heads, 1);
  EXPECT_EQ(config_of(1, 24).packed_heads, 1);  // groups of three
  EXPECT_EQ(config_of(1, 48).packed_heads, 2);
  EXPECT_EQ(config_of(4096, 32).packed_heads, 1);
  EXPECT_EQ(config_of(4096, 32).key_groups, 1);
}

TEST(Sm80FewQueries, ShareTheirKeysAmongCtas) {
  const auto workers = [](const FewShape& few, const DeviceShape& shape, bool used = false) {
    AttentionProblem problem = few_problem(few);
    problem.has_seqused_k = used;
    const ForwardPlan plan = few_plan(problem, shape);
    EXPECT_EQ(explain(problem, shape, plan).find("split keys") != std::string::npos, splits(plan.config));
    return splits(plan.config) ? plan.workers : 0;
  };
  const auto resident = [](const DeviceShape& shape) {
    const FewShape few{1, 1, 1 << 20, 1, 1, 128};
    return shape.multiprocessors * few_plan(few_problem(few), shape).config.ctas_per_sm;
  };
  for (const DeviceShape& shape : {kFewOnA100, kFewOnRtx4090, kFewOnH200}) {
    EXPECT_EQ(workers({1, 1, 4096, 32, 8, 128}, shape), 8 * std::min(16, resident(shape) / 8));
    EXPECT_EQ(workers({1, 1, 1000, 32, 8, 128}, shape), 0) << "too few keys";
    EXPECT_EQ(workers({1, 1, 1 << 20, 8, 1, 128}, shape), resident(shape)) << "one tile: everybody";
    EXPECT_EQ(workers({1024, 1, 4096, 32, 8, 128}, shape), 0) << "many rounds of tiles";
    EXPECT_EQ(workers({8, 1, 4096, 32, 8, 128}, shape, true), resident(shape)) << "lengths that the device knows";
    EXPECT_EQ(workers({500, 1, 4096, 1, 1, 128}, shape, true), 0) << "more sequences than the table of starts takes";
    EXPECT_EQ(workers({1, 4096, 4096, 32, 8, 128}, shape), 0) << "prefill";
  }
}

TEST(Sm80FewQueries, OptionsThatNeedWholeTilesAreNotSplit) {
  for (auto change :
       {+[](AttentionProblem& p) { p.dropout = 0.5F; }, +[](AttentionProblem& p) { p.modifiers.has_bias = true; },
        +[](AttentionProblem& p) { p.modifiers.block_size = 128; }}) {
    AttentionProblem problem = few_problem({1, 1, 8192, 8, 8, 128});
    EXPECT_EQ(few_plan(problem, kFewOnA100).config.schedule, Schedule::split);
    change(problem);
    EXPECT_EQ(few_plan(problem, kFewOnA100).config.schedule, Schedule::rounds);
    EXPECT_EQ(few_plan(problem, kFewOnA100).config.key_groups, 1);
  }
}

TEST(Sm80Caches, AreReadByPiecesOfPages) {
  AttentionProblem problem = few_problem({2, 1, 4096, 8, 8, 128});
  problem.page_size = 16;
  const ForwardPlan plan = few_plan(problem, kFewOnA100);
  EXPECT_TRUE(plan.config.pages && plan.config.rule.varlen && !plan.config.entries);
  const std::string text = explain(problem, kFewOnA100, plan);
  EXPECT_NE(text.find("pages         of 16 rows, read 16 rows at a time; the table a block ahead\n"), std::string::npos)
      << text;
  for (const std::int64_t page_size : {1, 8, 24, 100}) {
    problem.page_size = page_size;
    EXPECT_EQ(few_plan(problem, kFewOnA100).config.page_rows, 1) << page_size;
  }
  for (const std::int64_t page_size : {32, 48, 256}) {
    problem.page_size = page_size;
    EXPECT_EQ(few_plan(problem, kFewOnA100).config.page_rows, 16) << page_size;
  }
  problem.has_leftpad_k = true;  // blocks begin anywhere in a page
  EXPECT_EQ(few_plan(problem, kFewOnA100).config.page_rows, 1);
  problem.page_size = 0;
  problem.has_cache_batch_idx = problem.has_leftpad_k = true;
  const forward::Config config = few_plan(problem, kFewOnA100).config;
  EXPECT_TRUE(config.entries && config.rule.leftpad && !config.pages);
}

}  // namespace
}  // namespace strobe::sm80
