#include "plan/cpu_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "cpu/kernels/scratch.h"
#include "cpu/sequences.h"

namespace strobe::plan {
namespace {

using cpu::padded;
using cpu::Tiles;

std::int64_t rounded_down(std::int64_t value, std::int64_t multiple) {
  return std::max(multiple, value / multiple * multiple);
}

std::int64_t group_of(const AttentionProblem& problem) {
  return problem.heads_k == 0 ? 1 : problem.heads_q / problem.heads_k;
}

/// Bound on the blocks of `block` rows when every sequence starts a new one.
std::int64_t row_blocks_of(const AttentionProblem& problem, std::int64_t block) {
  const std::int64_t rows = problem.total_q * group_of(problem);
  return problem.heads_k * (rows / block + problem.batch);
}

Tiles forward_tiles(const AttentionProblem& problem, const CpuShape& shape, int threads) {
  const std::int64_t row_bytes = (problem.head_dim + problem.head_dim_v) * 4;
  const std::int64_t panel = shape.kernels.panel;
  // The scores of one panel live in L1 beside the operands that stream past them; the K and V tile in a quarter of L2.
  const std::int64_t by_l1 = shape.l1_bytes * 3 / 8 / (panel * 4);
  const std::int64_t by_l2 = shape.l2_bytes / 4 / row_bytes;
  Tiles tiles;
  tiles.block_n = rounded_down(std::min(by_l1, by_l2), 16);
  // Q and O of the block take what is left of three quarters of L2: the larger it is, the less often K and V are packed.
  const std::int64_t left = shape.l2_bytes * 3 / 4 - tiles.block_n * (row_bytes + panel * 4);
  const std::int64_t rows = padded(std::max<std::int64_t>(problem.seqlen_q * group_of(problem), 1), panel);
  tiles.block_m = std::min({rounded_down(left / row_bytes, panel), rows, rounded_down(384, panel)});
  // Every worker should get several blocks: the last ones to finish then cost little. Rows do not depend on one another, so
  // the bits do not depend on block_m.
  while (tiles.block_m > panel && row_blocks_of(problem, tiles.block_m) - problem.heads_k * problem.batch < 4L * threads) {
    tiles.block_m = rounded_down(tiles.block_m / 2, panel);
  }
  return tiles;
}

Tiles backward_tiles(const AttentionProblem& problem, const CpuShape& shape) {
  const std::int64_t panel = shape.kernels.panel;
  const std::int64_t rows = std::max<std::int64_t>(problem.seqlen_q * group_of(problem), 1);
  const std::int64_t keys = std::max<std::int64_t>(problem.seqlen_k, 1);
  // K twice, V, dK and dV of the block of keys in half of L2; Q, dO and dS of the block of queries in 0.3 of it.
  const std::int64_t key_bytes = (3 * problem.head_dim + 2 * problem.head_dim_v) * 4;
  Tiles tiles;
  tiles.block_n = std::min({rounded_down(shape.l2_bytes / 2 / key_bytes, panel), padded(keys, panel),
                            rounded_down(192, panel)});
  const std::int64_t query_bytes = (problem.head_dim + problem.head_dim_v + tiles.block_n + 2 * panel) * 4;
  const std::int64_t multiple = shape.kernels.row_multiple;
  tiles.block_m = std::min({rounded_down(shape.l2_bytes * 3 / 10 / query_bytes, multiple), padded(rows, multiple),
                            rounded_down(192, multiple)});
  return tiles;
}

}  // namespace

CpuPlan cpu_plan(const AttentionProblem& problem, const CpuShape& shape, int threads) {
  const bool forward = problem.pass == Pass::forward;
  CpuPlan plan;
  plan.threads = threads;
  plan.tiles = forward ? forward_tiles(problem, shape, threads) : backward_tiles(problem, shape);
  plan.row_blocks = row_blocks_of(problem, plan.tiles.block_m);
  plan.key_blocks = (problem.seqlen_k + plan.tiles.block_n - 1) / plan.tiles.block_n;

  cpu::ScratchLayout layout;
  CpuWorkspace& at = plan.workspace;
  at.sequences = layout.take<cpu::Sequence>(problem.batch);
  if (!forward) {
    const std::int64_t rows = plan.row_blocks * plan.tiles.block_m;
    at.delta = layout.take<float>(rows);
    at.dq = layout.take<float>(rows * padded(problem.head_dim, shape.kernels.wide_panel));
    at.turns = layout.take<std::int32_t>(plan.row_blocks);
  }
  at.worker_bytes = forward ? cpu::ForwardScratch(problem.head_dim, problem.head_dim_v, plan.tiles, shape.kernels).bytes
                            : cpu::BackwardScratch(problem.head_dim, problem.head_dim_v, plan.tiles, shape.kernels).bytes;
  at.scratch = layout.take<std::byte>(static_cast<std::int64_t>(at.worker_bytes) * threads);
  at.bytes = layout.bytes();
  return plan;
}

std::string explain(const AttentionProblem& problem, const CpuShape& shape, const CpuPlan& plan) {
  const bool forward = problem.pass == Pass::forward;
  const std::int64_t group = group_of(problem);
  std::string text = fmt::format("engine        cpu: the tensors are in host memory\n");
  text += fmt::format("instructions  {} ({} float32 lanes), float32 accumulation\n", shape.kernels.target,
                      shape.kernels.lanes);
  text += fmt::format("tiles         {} query rows x {} keys, for {} KiB of L1 and {} KiB of L2\n", plan.tiles.block_m,
                      plan.tiles.block_n, shape.l1_bytes / 1024, shape.l2_bytes / 1024);
  if (group > 1) text += fmt::format("grouped heads {} query heads share a key head and its packed tiles\n", group);
  text += forward ? fmt::format("tasks         up to {} blocks of query rows, each over all the keys it sees\n", plan.row_blocks)
                  : fmt::format("tasks         up to {} blocks of keys, each over all the queries that see it; dQ in key order\n",
                                plan.key_blocks * problem.batch * problem.heads_k);
  text += fmt::format("threads       {}; the result's bits do not depend on their number\n", plan.threads);
  text += fmt::format("workspace     {} bytes ({} a thread)\n", plan.workspace.bytes, plan.workspace.worker_bytes);
  return text;
}

}  // namespace strobe::plan
