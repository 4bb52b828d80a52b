// SPDX-License-Identifier: Apache-2.0
// The CPU engine's plans: how even their tasks are, and which backwards run in one phase.
#include "cpu/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "call/heads.h"
#include "call/visible_keys.h"

namespace strobe::cpu {
namespace {

Machine avx512() {
  return {.kernels = {.target = "AVX3", .lanes = 16, .panel = 48, .wide_panel = 32, .strip = 8, .row_multiple = 24},
          .l1_bytes = 32 * 1024,
          .l2_bytes = 1024 * 1024};
}

Machine avx2() {
  return {.kernels = {.target = "AVX2", .lanes = 8, .panel = 24, .wide_panel = 16, .strip = 4, .row_multiple = 12},
          .l1_bytes = 32 * 1024,
          .l2_bytes = 512 * 1024};
}

AttentionProblem problem_of(Pass pass, std::int64_t batch, std::int64_t heads, std::int64_t seqlen,
                            std::int64_t head_dim) {
  return {.pass = pass,
          .batch = batch,
          .heads_q = heads,
          .heads_kv = heads,
          .head_dim = head_dim,
          .head_dim_v = head_dim,
          .seqlen_q = seqlen,
          .seqlen_k = seqlen,
          .total_q = batch * seqlen,
          .total_k = batch * seqlen,
          .scale = 1.0F};
}

/// Visible pairs of each task of one sequence, in the order in which tasks are handed out.
std::vector<std::int64_t> work_of_tasks(const AttentionProblem& problem, const Tiles& tiles) {
  const bool forward = problem.pass == Pass::forward;
  const VisibleKeys visible = visible_keys(problem);
  const std::int64_t block = forward ? tiles.block_m : tiles.block_n;
  const std::int64_t blocks = ceil_div(forward ? problem.seqlen_q : problem.seqlen_k, block);
  std::vector<std::int64_t> work;
  for (std::int64_t index = 0; index < blocks; ++index) {
    const std::int64_t first = (forward ? blocks - 1 - index : index) * block;
    std::int64_t pairs = 0;
    for (std::int64_t i = first; i < std::min(first + block, problem.seqlen_q); ++i) {
      pairs += forward ? visible.end(i) - visible.begin(i)
                       : visible.last_position(i, problem.seqlen_q) - visible.first_position(i, problem.seqlen_q);
    }
    work.insert(work.end(), static_cast<std::size_t>(problem.heads_q), pairs);
  }
  return work;
}

/// How many times as fast as one worker `workers` are, if all run equally fast and each takes the next task.
double speedup(const std::vector<std::int64_t>& work, int workers) {
  std::vector<std::int64_t> busy(static_cast<std::size_t>(workers), 0);
  std::int64_t total = 0;
  for (const std::int64_t task : work) {
    *std::ranges::min_element(busy) += task;
    total += task;
  }
  return static_cast<double>(total) / static_cast<double>(*std::ranges::max_element(busy));
}

TEST(CpuPlan, SpreadsSixteenHeadsEvenly) {
  for (const Machine& machine : {avx512(), avx2()}) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      for (const std::int64_t seqlen : {512, 1000, 2048, 8192}) {
        for (const std::int64_t head_dim : {64, 128}) {
          for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
            AttentionProblem problem = problem_of(pass, 1, 16, seqlen, head_dim);
            problem.causal = causal;
            for (const auto& [threads, least] : {std::pair{16, 14.0}, std::pair{2, 1.85}}) {
              const CallPlan plan = make_call_plan(problem, machine, threads);
              EXPECT_GE(speedup(work_of_tasks(problem, plan.tiles), threads), least)
                  << machine.kernels.target << ", seqlen " << seqlen << ", head_dim " << head_dim << ", threads "
                  << threads << (pass == Pass::forward ? ", forward" : ", backward");
            }
          }
        }
      }
    }
  }
}

TEST(CpuPlan, RunsTheBackwardOfShortSequencesInOnePhase) {
  const CallPlan plan = make_call_plan(problem_of(Pass::backward, 32, 12, 197, 64), avx512(), 2);
  EXPECT_TRUE(plan.whole_sequences);
  EXPECT_EQ(plan.key_blocks, 1);
  EXPECT_EQ(plan.dq_blocks, 2 * ceil_div<std::int64_t>(197, plan.tiles.block_m));
  const CallPlan forward = make_call_plan(problem_of(Pass::forward, 32, 12, 197, 64), avx512(), 2);
  EXPECT_FALSE(forward.whole_sequences);
}

TEST(CpuPlan, KeepsThePhasesWhereATaskLacksKeysOrAWorkerTasks) {
  const CallPlan several_blocks = make_call_plan(problem_of(Pass::backward, 1, 12, 2048, 64), avx512(), 2);
  EXPECT_GT(several_blocks.key_blocks, 1);
  EXPECT_FALSE(several_blocks.whole_sequences);
  EXPECT_EQ(several_blocks.dq_blocks, several_blocks.row_blocks);
  const CallPlan idle_workers = make_call_plan(problem_of(Pass::backward, 1, 2, 197, 64), avx512(), 4);
  EXPECT_EQ(idle_workers.key_blocks, 1);
  EXPECT_FALSE(idle_workers.whole_sequences);
}

TEST(CpuPlan, NeverSumsMoreOfDqThanThereIs) {
  // Packed sequences, of which one may be as long as all: sums for every worker's longest would be many times dQ.
  AttentionProblem problem = problem_of(Pass::backward, 64, 1, 4096, 64);
  problem.packed_q = true;
  problem.seqlen_k = 64;
  problem.total_q = 4096;
  const CallPlan plan = make_call_plan(problem, avx512(), 16);
  EXPECT_FALSE(plan.whole_sequences);
  EXPECT_LE(plan.dq_blocks, plan.row_blocks);
}

// Whatever the shape, threads and units of the machine: the keys of a tile are all that a row's bits depend on.
TEST(CpuPlan, RowInvariantCallsHaveOneOrderOfKeys) {
  for (const bf16::Unit unit : {bf16::Unit::none, bf16::Unit::dot_products, bf16::Unit::tiles}) {
    Machine machine = avx512();
    machine.bfloat16 = unit;
    for (const std::int64_t queries : {1, 30, 5000}) {
      AttentionProblem problem = problem_of(Pass::forward, 2, 3, queries, 64);
      problem.dtype = DType::bfloat16;
      problem.row_invariant = true;
      const CallPlan plan = make_call_plan(problem, machine, static_cast<int>(queries % 7 + 1));
      EXPECT_EQ(plan.bfloat16, bf16::Unit::none);
      EXPECT_EQ(plan.few_queries.chunks, plan.few_queries.serves() ? 2 : 0);
      EXPECT_EQ(plan.tiles.block_n, 64);
    }
  }
}

}  // namespace
}  // namespace strobe::cpu
