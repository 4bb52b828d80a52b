// SPDX-License-Identifier: Apache-2.0
// Where the model of times takes other tiles than the rule's: of calls that leave a device idle, and nowhere else.
#include "gpu/plan/faster_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string_view>

#include "gpu/call_candidates.h"
#include "gpu/plan/plan_problem.h"
#include "sm90/backward_plan.h"
#include "sm90/backward_tiles.h"
#include "sm90/forward_plan.h"

namespace strobe::gpu {
namespace {

using test::device_named;

/// One sequence.
AttentionProblem call(Pass pass, std::int64_t heads_q, std::int64_t heads_kv, std::int64_t seqlen,
                      std::int64_t head_dim, bool causal) {
  AttentionProblem problem = test::problem_of(seqlen, head_dim, head_dim);
  problem.pass = pass;
  problem.batch = 1;
  problem.total_q = problem.total_k = seqlen;
  problem.heads_q = heads_q;
  problem.heads_kv = heads_kv;
  if (causal) problem.causal = CausalMask::bottom_right;
  return problem;
}

AttentionProblem forward(std::int64_t seqlen, std::int64_t head_dim, bool causal) {
  return call(Pass::forward, 16, 16, seqlen, head_dim, causal);
}

int rows_of(const AttentionProblem& problem, std::string_view device = "H200") {
  return block_m(*sm90::forward_config(problem, device_named(device)));
}

bool takes_rules_tiles(const AttentionProblem& backward, std::string_view device = "H200") {
  return *sm90::backward_config(backward, device_named(device)) == sm90::with_tiles(backward);
}

TEST(FasterPlan, IsTakenBeyondTheMarginAlone) {
  FasterPlan faster(1.0, 1.25);
  EXPECT_FALSE(faster.takes(0.81));  // within the margin
  EXPECT_TRUE(faster.takes(0.79));
  EXPECT_FALSE(faster.takes(0.795));  // slower than the last one
  EXPECT_TRUE(faster.takes(0.5));
}

TEST(FasterPlan, IsLookedForWhereTilesAreFewAndTheDeviceIdles) {
  const DeviceShape shape = device_named("H200");
  EXPECT_TRUE(has_few_tiles(132, shape));
  EXPECT_TRUE(has_few_tiles(6 * 132, shape));
  EXPECT_FALSE(has_few_tiles(6 * 132 + 1, shape));
  EXPECT_TRUE(leaves_idle({.filled = 0.5}));
  EXPECT_FALSE(leaves_idle({.filled = 0.9}));
}

TEST(Sm90IdleDevice, ForwardsTakeSmallerTiles) {
  for (const std::int64_t seqlen : {256, 512, 1024}) EXPECT_EQ(rows_of(forward(seqlen, 64, false)), 64) << seqlen;
  for (const std::int64_t seqlen : {256, 512, 1024, 2048}) {
    EXPECT_EQ(rows_of(forward(seqlen, 64, true)), 128) << seqlen;
  }
  for (const bool causal : {false, true}) EXPECT_EQ(rows_of(forward(2048, 128, causal)), 128) << causal;
  AttentionProblem half = forward(1024, 64, true);
  half.dtype = DType::float16;
  EXPECT_EQ(rows_of(half), 128);
}

/// 16 heads, d128, predicted: 1.10 times as fast at 4k without a mask, and less than 1.05 at 3k.
TEST(Sm90IdleDevice, ForwardsOfWideHeadsHaveASmallMargin) {
  EXPECT_EQ(rows_of(forward(4096, 128, false)), 128);
  EXPECT_EQ(rows_of(forward(3072, 128, false)), 192);
  EXPECT_EQ(rows_of(forward(16384, 128, false)), 192);
}

TEST(Sm90IdleDevice, ForwardsThatFillADeviceKeepTheRulesTiles) {
  EXPECT_EQ(rows_of(forward(1024, 64, false)), 64);
  AttentionProblem many = forward(1024, 64, false);
  many.batch = 64;
  many.total_q = many.total_k = 64 * 1024;
  EXPECT_EQ(rows_of(many), 256);
  EXPECT_EQ(rows_of(forward(4096, 64, true)), 256);
  // An H20 has as many multiprocessors as there are tiles of 256 rows.
  EXPECT_EQ(rows_of(forward(1024, 64, false), "H20"), 256);
}

TEST(Sm90IdleDevice, OtherForwardsKeepTheirTiles) {
  using Change = std::function<void(AttentionProblem&)>;
  const Change changes[] = {[](AttentionProblem& p) { p.row_invariant = true; },
                            [](AttentionProblem& p) { p.packed_q = p.packed_k = true; },
                            [](AttentionProblem& p) { p.has_seqused_k = true; },
                            [](AttentionProblem& p) { p.page_size = 16; },
                            [](AttentionProblem& p) { p.softcap = 30.0F; },
                            [](AttentionProblem& p) { p.window.left = 127; },
                            [](AttentionProblem& p) { p.modifiers.has_sink = true; },
                            [](AttentionProblem& p) { p.dropout = 0.1F; }};
  DeviceShape small = device_named("H200");
  small.multiprocessors = 1;  // which every call fills
  for (const Change& change : changes) {
    AttentionProblem problem = forward(512, 64, true);
    change(problem);
    EXPECT_EQ(block_m(*sm90::forward_config(problem, small)), rows_of(problem));
  }
}

TEST(Sm90IdleDevice, BackwardsTakeKernelsByRoles) {
  const auto queries_of_step = [](std::int64_t heads_q, std::int64_t heads_kv, std::int64_t seqlen, bool causal) {
    const AttentionProblem problem = call(Pass::backward, heads_q, heads_kv, seqlen, 128, causal);
    const sm90::backward::Config config = *sm90::backward_config(problem, device_named("H200"));
    return config.by_roles ? config.block_m : 0;
  };
  EXPECT_EQ(queries_of_step(32, 8, 256, true), 64);
  for (const std::int64_t seqlen : {512, 1024}) {
    for (const bool causal : {false, true}) {
      EXPECT_EQ(queries_of_step(32, 8, seqlen, causal), 128) << seqlen << causal;
      EXPECT_EQ(queries_of_step(64, 8, seqlen, causal), 128) << seqlen << causal;
    }
  }
  EXPECT_EQ(queries_of_step(32, 8, 2048, false), 0);
  EXPECT_EQ(queries_of_step(32, 16, 1024, false), 0);
}

TEST(Sm90IdleDevice, OtherBackwardsKeepTheRulesTiles) {
  EXPECT_TRUE(takes_rules_tiles(call(Pass::backward, 32, 8, 2048, 128, true)));
  EXPECT_TRUE(takes_rules_tiles(call(Pass::backward, 16, 16, 1024, 128, false)));
  EXPECT_TRUE(takes_rules_tiles(call(Pass::backward, 16, 16, 512, 64, true)));
  AttentionProblem packed = call(Pass::backward, 32, 8, 512, 128, true);
  packed.packed_q = packed.packed_k = true;
  EXPECT_TRUE(takes_rules_tiles(packed));
  AttentionProblem many = call(Pass::backward, 16, 16, 512, 128, true);
  many.batch = 32;
  many.total_q = many.total_k = 32 * 512;
  EXPECT_TRUE(takes_rules_tiles(many));
}

/// A tune measures what the model has left, however slow it is said to be.
TEST(Sm90IdleDevice, RulesThatWereLeftAreCandidates) {
  const auto has = [](const AttentionProblem& problem, const Choice& choice) {
    const Result<CallCandidates> all = candidates_of(problem, "H200", device_named("H200"));
    EXPECT_TRUE(all.ok()) << all.status().message();
    EXPECT_LE(all->candidates.size(), 6U);
    EXPECT_EQ(all->candidates.front().choice, Choice());
    return std::ranges::count(all->candidates, choice, &Candidate::choice) == 1;
  };
  EXPECT_TRUE(has(forward(512, 64, true), {.block_m = 256, .block_n = 64, .ctas = 1}));
  EXPECT_TRUE(has(call(Pass::backward, 32, 8, 512, 128, true), {.block_m = 64, .block_n = 128, .ctas = 1}));
  EXPECT_FALSE(has(forward(16384, 64, true), {.block_m = 256, .block_n = 64, .ctas = 1}));  // its own
}

/// What is asked for is not compared.
TEST(Sm90IdleDevice, ChoicesCountForMore) {
  const Choice choice{.block_m = 256, .block_n = 64, .ctas = 1};
  EXPECT_EQ(block_m(*sm90::forward_config(forward(512, 64, true), device_named("H200"), choice)), 256);
}

}  // namespace
}  // namespace strobe::gpu
