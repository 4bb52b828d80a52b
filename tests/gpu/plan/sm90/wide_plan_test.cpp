// SPDX-License-Identifier: Apache-2.0
// Heads of more than 256 columns: what the plan decides, and what it lacks.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "call/row_format.h"
#include "gpu/plan/plan_problem.h"
#include "kernels/sm90/forward/smem.h"
#include "sm90/cache_conversion.h"
#include "sm90/forward_plan.h"
#include "sm90/rows_in_format.h"

namespace strobe::sm90 {
namespace {

using test::config_of;
using test::kH200;
using test::plan_of;
using test::problem_of;
using test::problem_of_rows;

using WideChange = void (*)(AttentionProblem& problem);

void set_pages(AttentionProblem& problem, std::int64_t page_size) {
  problem.page_size = page_size;
  problem.has_seqused_k = true;
}

constexpr WideChange kWideOptions[] = {
    [](AttentionProblem&) {},
    [](AttentionProblem& p) { p.causal = CausalMask::bottom_right; },
    [](AttentionProblem& p) { p.window.left = 1023; },
    [](AttentionProblem& p) { p.softcap = 30.0F; },
    [](AttentionProblem& p) { p.modifiers.has_alibi = true; },
    [](AttentionProblem& p) { p.modifiers.has_bias = true; },
    [](AttentionProblem& p) { p.dropout = 0.1F; },
    [](AttentionProblem& p) { p.modifiers.block_size = 64; },
    [](AttentionProblem& p) { p.packed_q = p.packed_k = true; },
    [](AttentionProblem& p) { set_pages(p, 64); },
    [](AttentionProblem& p) { set_pages(p, 1); },
    [](AttentionProblem& p) {
      set_pages(p, 1);
      p.modifiers.block_size = 64;
    },
};

TEST(Sm90WidePlan, FitsRegistersAndSharedMemory) {
  using Widths = std::pair<std::int64_t, std::int64_t>;
  for (const auto& [head_dim, head_dim_v] : {Widths{264, 264}, Widths{320, 256}, Widths{288, 288}, Widths{512, 512},
                                             Widths{576, 512}, Widths{64, 512}, Widths{576, 8}}) {
    for (const WideChange option : kWideOptions) {
      AttentionProblem problem = problem_of(4096, head_dim, head_dim_v);
      option(problem);
      const forward::Config config = config_of(problem);
      EXPECT_TRUE(is_wide(config));
      EXPECT_LE(smem_plan(config).total_bytes, kMaxSmemBytes) << head_dim << ' ' << head_dim_v;
      const int registers = config.producer_warpgroups * config.producer_registers +
                            config.consumer_warpgroups * config.consumer_registers +
                            config.output_warpgroups * config.output_registers;
      EXPECT_LE(registers * kWarpgroupSize, 65536);
      EXPECT_GE(config.consumer_registers * threads_per_block(config), 65536);  // what each has at launch, or more
      EXPECT_GE(config.head_dim, head_dim);
      EXPECT_GE(config.head_dim_v, head_dim_v);
    }
  }
  EXPECT_FALSE(is_wide(config_of(problem_of(4096, 256, 256))));
}

/// As many tiles of one length as multiprocessors take in few rounds are not split: their parts are large.
TEST(Sm90WidePlan, SplitsKeysOfFewQueries) {
  const auto schedule_of = [](std::int64_t batch, std::int64_t keys, bool paged) {
    AttentionProblem problem = problem_of(keys, 576, 512);
    problem.batch = problem.total_q = batch;
    problem.seqlen_q = 1;
    problem.total_k = batch * keys;
    problem.heads_q = 128;
    problem.heads_kv = 1;
    if (paged) set_pages(problem, 64);
    const ForwardPlan plan = plan_of(problem);
    EXPECT_EQ(plan.split.total_bytes > 0, plan.config.schedule == Schedule::split);
    return plan.config.schedule;
  };
  EXPECT_EQ(schedule_of(2, 65536, false), Schedule::split);
  EXPECT_EQ(schedule_of(2, 65536, true), Schedule::split);
  EXPECT_EQ(schedule_of(128, 4096, false), Schedule::rounds);
  EXPECT_EQ(schedule_of(2, 512, false), Schedule::rounds);
}

/// Of one key head, K's rows of 576 or 512 columns, V's of 512; where the registers last.
TEST(Sm90WidePlan, LoadsValuesThatAreKeysOnce) {
  const auto shared = [](std::int64_t head_dim, std::int64_t head_dim_v, WideChange change) {
    AttentionProblem problem = problem_of(4096, head_dim, head_dim_v);
    problem.heads_kv = 1;
    change(problem);
    const auto config = shared_values_config(problem, config_of(problem));
    if (!config.has_value()) return false;
    EXPECT_TRUE(config->values_in_keys);
    EXPECT_GE(config->stages, 8);  // two blocks: P V of one begins when the scores of the next are issued
    EXPECT_LE(smem_plan(*config).total_bytes, kMaxSmemBytes);
    const int registers = config->producer_registers + config->consumer_registers + 2 * config->output_registers;
    EXPECT_LE(registers * kWarpgroupSize, 65536);
    return true;
  };
  const WideChange nothing = [](AttentionProblem&) {};
  EXPECT_TRUE(shared(576, 512, nothing));
  EXPECT_TRUE(shared(512, 512, nothing));
  EXPECT_TRUE(shared(576, 512, [](AttentionProblem& p) { set_pages(p, 1); }));
  EXPECT_TRUE(shared(576, 512, [](AttentionProblem& p) { set_pages(p, 64); }));
  EXPECT_TRUE(shared(576, 512, [](AttentionProblem& p) {
    p.seqlen_q = p.total_q = 1;
    set_pages(p, 64);
  }));
  EXPECT_TRUE(shared(576, 512, [](AttentionProblem& p) {
    p.seqlen_q = p.total_q = 1;
    set_pages(p, 1);
  }));
  EXPECT_FALSE(shared(568, 512, nothing));
  EXPECT_FALSE(shared(576, 256, nothing));
  EXPECT_FALSE(shared(576, 512, [](AttentionProblem& p) { p.heads_kv = p.heads_q; }));
  EXPECT_FALSE(shared(576, 512, [](AttentionProblem& p) { p.softcap = 30.0F; }));
  EXPECT_FALSE(shared(576, 512, [](AttentionProblem& p) { p.modifiers.has_bias = true; }));
}

/// The table of a sorted schedule takes memory that V's ring has no stage of otherwise.
TEST(Sm90WidePlan, FewSequencesLeaveAStageMore) {
  const auto config_of_batch = [](std::int64_t batch) {
    AttentionProblem problem = problem_of_rows(batch, 576);
    problem.page_size = 0;
    return shared_values_config(problem, config_of(problem)).value();
  };
  const forward::Config few = config_of_batch(256);
  const forward::Config many = config_of_batch(257);
  EXPECT_EQ(few.schedule, Schedule::sorted);
  EXPECT_EQ(few.table_sequences, 256);
  EXPECT_EQ(many.table_sequences, kMaxTableSequences);
  EXPECT_EQ(few.stages, many.stages + 1);
}

/// TMA brings blocks that lie in one page each.
TEST(Sm90WidePlan, LatentRowsOfOtherPagesAreCopied) {
  const auto keys_of = [](std::int64_t page_size) {
    AttentionProblem problem = problem_of_rows(128, 576);
    set_pages(problem, page_size);
    return shared_values_config(problem, config_of(problem)).value().keys;
  };
  for (const std::int64_t size : {64, 128, 192}) EXPECT_EQ(keys_of(size), forward::KeySource::page_blocks) << size;
  for (const std::int64_t size : {1, 16, 96}) EXPECT_EQ(keys_of(size), forward::KeySource::page_rows) << size;
}

/// Where K and V lie apart, boxes of a part of a block are faster than rows that threads copy.
TEST(Sm90WidePlan, PagesHoldBlocksOrBoxes) {
  const auto keys_of = [](std::int64_t page_size, std::int64_t queries) {
    AttentionProblem problem = problem_of(4096, 512, 512);
    problem.seqlen_q = queries;
    problem.total_q = problem.batch * queries;
    problem.has_seqused_k = true;
    set_pages(problem, page_size);
    return config_of(problem).keys;
  };
  for (const std::int64_t queries : {1, 4096}) {
    for (const std::int64_t size : {64, 256})
      EXPECT_EQ(keys_of(size, queries), forward::KeySource::page_blocks) << size;
    for (const std::int64_t size : {8, 16, 96})
      EXPECT_EQ(keys_of(size, queries), forward::KeySource::page_boxes) << size;
    for (const std::int64_t size : {1, 12}) EXPECT_EQ(keys_of(size, queries), forward::KeySource::page_rows) << size;
  }
}

/// Rows in a format are converted where they lie by all producers, which take registers from the consumer.
TEST(Sm90WidePlan, ConvertsRowsInAFormat) {
  for (const std::int64_t queries : {1, 200, 416, 417, 10'000}) {
    for (const RowFormat& format : {deepseek_v32_rows(), deepseek_v4_rows()}) {
      const auto config = rows_config(problem_of_rows(queries, format.columns()), kH200, format);
      ASSERT_TRUE(config.ok()) << config.status().message();
      EXPECT_EQ(config->keys, forward::KeySource::rows_in_format);
      EXPECT_EQ(config->format.row_bytes, format.row_bytes);
      EXPECT_TRUE(config->values_in_keys);
      EXPECT_GE(config->stages, 8);  // two blocks
      EXPECT_LE(smem_plan(*config).total_bytes, kMaxSmemBytes);
      const int registers = config->producer_registers + config->consumer_registers + 2 * config->output_registers;
      EXPECT_EQ(registers * kWarpgroupSize, 65536);
    }
  }
}

TEST(Sm90WidePlan, SaysWhyRowsInAFormatAreConvertedBefore) {
  const auto reason = [](WideChange change, const RowFormat& format) {
    AttentionProblem problem = problem_of_rows(200, 576);
    change(problem);
    return std::string(rows_config(problem, kH200, format).status().message());
  };
  const WideChange nothing = [](AttentionProblem&) {};
  const std::string widths =
      ", of 1 key heads: the sm90 kernels convert rows where they lie of one head, 512 or 576 columns and 512 of V";
  EXPECT_EQ(reason(nothing, deepseek_v32_rows()), "");
  EXPECT_EQ(reason([](AttentionProblem& p) { p.heads_q = 128; }, deepseek_v32_rows()), "");
  EXPECT_EQ(reason([](AttentionProblem& p) { p.heads_q = 192; }, deepseek_v32_rows()),
            "3 tiles of query rows read each row: the sm90 kernels convert it where it lies for one, or a pair");
  EXPECT_EQ(reason(nothing, plain_rows(DType::float32, 576)),
            "rows have float32 elements: the sm90 kernels convert those of up to 16 bits where they lie");
  EXPECT_EQ(reason([](AttentionProblem& p) { p.head_dim = p.head_dim_v = 128; }, eight_bit_rows(RowElement::int8, 128)),
            "head_dim is 128 and head_dim_v 128" + widths);
  EXPECT_EQ(reason([](AttentionProblem& p) { p.softcap = 30.0F; }, deepseek_v32_rows()),
            "softcap is given: the sm90 kernels convert rows where they lie without it");
}

/// Latent rows of a cache in 8 bits are such rows, too, where they are in pages and one tile, or a pair, has all that
/// read them.
TEST(Sm90WidePlan, ConvertsLatentRowsOfACacheWhereTheyLie) {
  const auto stay = [](WideChange change) {
    AttentionProblem problem = problem_of_rows(32, 576);
    problem.page_size = 64;
    problem.stored = {.dtype = DType::float8_e4m3, .k_rows = problem.seqlen_k, .v_rows = problem.seqlen_k};
    change(problem);
    const auto config = cache_rows_config(problem, kH200);
    if (config.has_value()) {
      EXPECT_EQ(config->keys, forward::KeySource::rows_in_format);
      EXPECT_TRUE(has_scales_apart(config->format));
      EXPECT_EQ(config->format.row_bytes, 576);
    }
    return config.has_value();
  };
  EXPECT_TRUE(stay([](AttentionProblem&) {}));
  EXPECT_TRUE(stay([](AttentionProblem& p) { p.page_size = 1; }));
  EXPECT_TRUE(stay([](AttentionProblem& p) { p.heads_q = 16, p.seqlen_q = 4, p.total_q = 128; }));
  EXPECT_TRUE(
      stay([](AttentionProblem& p) { p.packed_q = true, p.causal = CausalMask::bottom_right; }));  // of one query
  EXPECT_TRUE(stay([](AttentionProblem& p) { p.stored.dtype = DType::int8; }));
  EXPECT_TRUE(stay([](AttentionProblem& p) { p.heads_q = 128; }));
  EXPECT_FALSE(stay([](AttentionProblem& p) { p.seqlen_q = 2, p.total_q = 64; }));  // two tiles
  EXPECT_FALSE(stay([](AttentionProblem& p) { p.page_size = 0, p.has_seqused_k = false; }));
  EXPECT_FALSE(stay([](AttentionProblem& p) { p.has_leftpad_k = true; }));
  EXPECT_FALSE(stay([](AttentionProblem& p) { p.stored = {}; }));
  EXPECT_FALSE(stay([](AttentionProblem& p) { p.head_dim = p.head_dim_v = 128; }));
}

/// Where a copy would be too large, all tiles convert what they read.
TEST(Sm90WidePlan, LatentRowsOfALargeCacheStay) {
  AttentionProblem problem = problem_of_rows(32, 576);
  problem.heads_q = 256;
  problem.page_size = 64;
  problem.seqlen_k = 128 * 1024;
  problem.stored = {.dtype = DType::float8_e4m3, .k_rows = problem.seqlen_k, .v_rows = problem.seqlen_k};
  EXPECT_FALSE(converts_cache(problem));
  EXPECT_TRUE(cache_rows_config(problem, kH200).has_value());
  problem.batch = problem.total_q = 1;
  EXPECT_TRUE(converts_cache(problem));
  EXPECT_FALSE(cache_rows_config(problem, kH200).has_value());
}

/// Two tiles of the same keys are a pair of CTAs, which convert those once: where all tiles are such pairs, in any
/// order that CTAs take them in, and without a mask.
TEST(Sm90WidePlan, TilesOfTheSameRowsArePairs) {
  const auto in_pairs = [](std::int64_t sequences, WideChange change) {
    AttentionProblem problem = problem_of_rows(sequences, 576);
    problem.heads_q = 128;
    problem.page_size = 64;
    problem.stored = {.dtype = DType::float8_e4m3, .k_rows = problem.seqlen_k, .v_rows = problem.seqlen_k};
    change(problem);
    const auto config = cache_rows_config(problem, kH200);
    if (!config.has_value()) return false;
    for (const int multiprocessors : {1, 5, 78, 114, 132}) {
      gpu::DeviceShape shape = kH200;
      shape.multiprocessors = multiprocessors;
      EXPECT_EQ(forward_plan(with_rows_of_cache(problem), shape, *config).workers % cluster_ctas(*config), 0);
    }
    return config->in_pairs;
  };
  const WideChange nothing = [](AttentionProblem&) {};
  EXPECT_TRUE(in_pairs(128, nothing));
  EXPECT_TRUE(in_pairs(2, nothing));    // split keys
  EXPECT_TRUE(in_pairs(600, nothing));  // too many for tables of sequences
  EXPECT_FALSE(in_pairs(128, [](AttentionProblem& p) { p.heads_q = 64; }));
  EXPECT_FALSE(in_pairs(128, [](AttentionProblem& p) { p.seqlen_q = 2, p.total_q = 256; }));
  EXPECT_FALSE(in_pairs(128, [](AttentionProblem& p) {
    p.heads_q = 64;
    p.seqlen_q = 2;
    p.total_q = 256;
  }));
}

TEST(Sm90WidePlan, IsExplained) {
  const AttentionProblem problem = problem_of(4096, 576, 512);
  const std::string text = explain(problem, plan_of(problem));
  EXPECT_NE(text.find("warpgroups    1 producer, 1 for scores, 2 for O, of 256 columns each\n"), std::string::npos)
      << text;
}

TEST(Sm90WidePlan, NamesWhatItLacks) {
  const auto rejection = [](WideChange change) {
    AttentionProblem problem = problem_of(4096, 512, 512);
    change(problem);
    return std::string(forward_config(problem, kH200).status().message());
  };
  EXPECT_EQ(
      rejection([](AttentionProblem& p) { p.stored = {.dtype = DType::int8, .k_rows = 32, .v_rows = 32}; }),
      "head_dim is 512 and head_dim_v 512: above 256 columns the sm90 kernels have no 8-bit inputs; the cpu engine "
      "has");
}

}  // namespace
}  // namespace strobe::sm90
