// SPDX-License-Identifier: Apache-2.0
// Which calls split their keys, and among how many CTAs.
#include <gtest/gtest.h>

#include <string>

#include "gpu/plan/plan_problem.h"
#include "kernels/sm90/forward/smem.h"
#include "kernels/sm90/tile/panel.h"
#include "sm90/forward_plan.h"

namespace strobe::sm90 {
namespace {

using test::kH200;
using test::problem_of;

ForwardPlan planned_for(const AttentionProblem& problem) {
  return forward_plan(problem, kH200, *forward_config(problem, kH200));
}

struct SplitShape {
  std::int64_t batch, queries, keys, heads_q, heads_kv, head_dim;
  bool used_lengths;
  int workers;  // 0: keys are not split
};

TEST(Sm90SplitKeys, SplitsTheKeysOfFewQueries) {
  for (const SplitShape& s : {
           SplitShape{1, 1, 4096, 32, 8, 128, false, 128},    // 16 CTAs a tile, of 256 keys each
           SplitShape{1, 1, 1024, 32, 8, 128, false, 32},     // 4, of 256
           SplitShape{1, 1, 1000, 32, 8, 128, false, 0},      // too few keys
           SplitShape{1, 1, 131072, 64, 8, 128, false, 128},  // 16 a tile
           SplitShape{1, 1, 131072, 8, 1, 128, false, 132},   // one tile: everybody
           SplitShape{4, 1, 8192, 64, 8, 128, false, 128},    // 4 a tile
           SplitShape{2, 16, 8192, 32, 8, 128, false, 128},   // 64 rows are one tile still
           SplitShape{8, 1, 4096, 32, 8, 128, false, 128},    // 2 a tile
           SplitShape{16, 1, 4096, 32, 8, 128, false, 0},     // 128 tiles are nearly as many as multiprocessors
           SplitShape{11, 1, 4096, 32, 8, 128, false, 132},   // 88 are not, and 176 would be two rounds
           SplitShape{32, 1, 16384, 32, 8, 128, false, 132},  // 256 tiles in 1.94 rounds
           SplitShape{128, 1, 1024, 32, 8, 128, false, 0},    // 1,024 tiles
           SplitShape{1, 64, 32768, 32, 8, 128, false, 128},  // 256 rows a head: two tiles of 128 for each of 8 heads
           SplitShape{1, 1024, 4096, 32, 8, 128, false, 0},   // prefill
           SplitShape{1, 1, 4096, 32, 8, 128, true, 128},     // at most 16 parts a tile
           SplitShape{8, 1, 4096, 32, 8, 128, true, 132},     // lengths that the device knows: everybody
           SplitShape{64, 1, 4096, 32, 8, 128, true, 132},    // 512 tiles
           SplitShape{500, 1, 4096, 1, 1, 128, true, 0},      // more sequences than the table of starts takes
           SplitShape{1, 1, 4096, 16, 16, 64, false, 128},    // 8 a tile
       }) {
    AttentionProblem problem = problem_of(s.keys, s.head_dim, s.head_dim);
    problem.batch = s.batch;
    problem.heads_q = s.heads_q;
    problem.heads_kv = s.heads_kv;
    problem.seqlen_q = s.queries;
    problem.total_q = s.batch * s.queries;
    problem.total_k = s.batch * s.keys;
    problem.has_seqused_k = s.used_lengths;
    const ForwardPlan plan = planned_for(problem);
    const std::string text = explain(problem, plan);
    EXPECT_EQ(plan.config.schedule == Schedule::split ? plan.workers : 0, s.workers) << text;
    EXPECT_EQ(text.find("split keys") != std::string::npos, s.workers > 0) << text;
    EXPECT_EQ(plan.split.total_bytes > 0, s.workers > 0);
    EXPECT_LE(plan.workers, 132 * plan.config.ctas_per_sm);
    EXPECT_LE(smem_plan(plan.config).total_bytes, kMaxSmemBytes) << text;
  }
}

TEST(Sm90SplitKeys, NothingIsSplitWithoutQueries) {
  AttentionProblem problem = problem_of(30000, 128, 128);
  problem.seqlen_q = problem.total_q = 0;
  const ForwardPlan plan = planned_for(problem);
  EXPECT_NE(plan.config.schedule, Schedule::split);
  EXPECT_EQ(plan.tiles.tiles, 0);
}

/// Row-invariant calls: no more CTAs than segments, and none where tiles occupy the multiprocessors.
TEST(Sm90SplitKeys, SplitsRowInvariantCallsAtSegments) {
  for (const SplitShape& s : {
           SplitShape{1, 1, 2048, 32, 8, 128, false, 0},      // one segment
           SplitShape{1, 1, 2049, 32, 8, 128, false, 16},     // two
           SplitShape{1, 1, 32768, 32, 8, 128, false, 128},   // 16 of 8 tiles
           SplitShape{1, 1, 131072, 32, 8, 128, true, 132},   // 512 segments
           SplitShape{16, 1, 8192, 32, 8, 128, false, 0},     // 128 tiles
           SplitShape{32, 1, 8192, 32, 8, 128, false, 0},     // two rounds
           SplitShape{1, 1, 131072, 32, 8, 256, false, 132},  // of 4,096 keys
           SplitShape{1, 1, 1 << 21, 32, 8, 128, false, 0},   // more segments than a row's may be
           SplitShape{1, 4096, 4096, 32, 8, 128, false, 0},   // prefill
       }) {
    AttentionProblem problem = problem_of(s.keys, s.head_dim, s.head_dim);
    problem.row_invariant = true;
    problem.batch = s.batch;
    problem.heads_q = s.heads_q;
    problem.heads_kv = s.heads_kv;
    problem.seqlen_q = s.queries;
    problem.total_q = s.batch * s.queries;
    problem.total_k = s.batch * s.keys;
    problem.has_seqused_k = s.used_lengths;
    const ForwardPlan plan = planned_for(problem);
    const std::string text = explain(problem, plan);
    EXPECT_EQ(plan.config.schedule == Schedule::split ? plan.workers : 0, s.workers) << text;
    EXPECT_EQ(plan.split.combine.segments, s.workers > 0) << text;
    EXPECT_NE(text.find("row-invariant"), std::string::npos);
  }
}

TEST(Sm90SplitKeys, SaysHowKeysAreSplit) {
  AttentionProblem problem = problem_of(8192, 128, 128);
  problem.seqlen_q = 1;
  problem.total_q = problem.batch;
  const auto line = [&] {
    const std::string text = explain(problem, planned_for(problem));
    const std::size_t at = text.find("split keys");
    return text.substr(at, text.find('\n', at) - at);
  };
  EXPECT_EQ(line(), "split keys    8 CTAs share the keys of a tile: there are fewer tiles than multiprocessors");
  problem.batch = problem.total_q = 11;
  EXPECT_EQ(line(), "split keys    132 CTAs share the keys of 88 tiles, which are no whole rounds of them");
  problem.has_seqused_k = true;
  EXPECT_EQ(line(), "split keys    132 CTAs share the keys of all sequences, by the lengths that the device finds");
}

TEST(Sm90SplitKeys, OptionsThatNeedWholeTilesAreNotSplit) {
  for (auto change :
       {+[](AttentionProblem& p) { p.dropout = 0.5F; }, +[](AttentionProblem& p) { p.modifiers.has_bias = true; },
        +[](AttentionProblem& p) { p.modifiers.block_size = 128; }}) {
    AttentionProblem problem = problem_of(8192, 128, 128);
    problem.seqlen_q = 1;
    problem.total_q = problem.batch;
    EXPECT_EQ(planned_for(problem).config.schedule, Schedule::split);
    change(problem);
    EXPECT_NE(planned_for(problem).config.schedule, Schedule::split);
  }
}

}  // namespace
}  // namespace strobe::sm90
