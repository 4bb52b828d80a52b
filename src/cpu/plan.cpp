// SPDX-License-Identifier: Apache-2.0
#include "cpu/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "call/eight_bit.h"
#include "call/heads.h"
#include "cpu/bfloat16/scratch.h"
#include "cpu/bfloat16_tiles.h"
#include "cpu/blocks.h"
#include "cpu/kernels/few_queries.h"
#include "cpu/kernels/scratch.h"
#include "cpu/workspace.h"

namespace strobe::cpu {
namespace {

/// Bound on the blocks of `block` rows when every sequence starts a new one.
std::int64_t row_blocks_of(const AttentionProblem& problem, std::int64_t block) {
  const Checked rows = Checked(problem.total_q) * heads_per_group(problem);
  return (head_groups(problem) * (rows / block + problem.batch)).value();
}

/// Of a JVP, too: beside every operand and every score there is its tangent.
Tiles forward_tiles(const AttentionProblem& problem, const Machine& machine, int threads) {
  const std::int64_t element_bytes = problem.pass == Pass::jvp ? 8 : 4;
  const std::int64_t row_bytes = (problem.head_dim + qv_columns(problem) + problem.head_dim_v) * element_bytes;
  const std::int64_t panel = machine.kernels.panel;
  // The scores of one panel live in L1 beside the operands that stream past them; the K and V tile in a quarter of L2.
  const std::int64_t by_l1 = machine.l1_bytes * 3 / 8 / (panel * element_bytes);
  const std::int64_t by_l2 = machine.l2_bytes / 4 / row_bytes;
  Tiles tiles;
  tiles.block_n = whole_multiple(std::min(by_l1, by_l2), 16);
  // The more rows a block has, the less often K and V are read and packed; their Q and O stream through L2 in order,
  // where rows of K and V can be pages apart. Every worker should get several blocks: the last to finish then cost
  // little. Rows do not depend on one another, so the bits do not depend on block_m.
  // log: forward-query-rows
  constexpr std::int64_t kMostRows = 1024;
  constexpr std::int64_t kBlocksPerWorker = 4;
  const bool masked = problem.modifiers.block_size != 0;
  const std::int64_t part = masked ? masked_block(problem, kMostRows, 1) : panel;
  if (masked) tiles.block_n = problem.modifiers.block_size;
  if (problem.eight_bit.given()) tiles.block_n = kProbabilityKeys;
  if (problem.pass == Pass::forward && problem.row_invariant)
    tiles.block_n = kFewQueriesKeys;  // few queries have the same tiles
  tiles.block_m = even_block(longest_group_rows(problem), round_up(kMostRows, part),
                             (Checked(problem.batch) * head_groups(problem)).value(), kBlocksPerWorker * threads, part);
  tiles.part_m = masked ? part : tiles.block_m;
  return tiles;
}

Tiles backward_tiles(const AttentionProblem& problem, const Machine& machine) {
  const std::int64_t panel = machine.kernels.panel;
  const std::int64_t rows = longest_group_rows(problem);
  const std::int64_t keys = std::max<std::int64_t>(problem.seqlen_k, 1);
  // K twice, V, dK and dV of a block of keys. Half of L2 holds the least block; a larger one streams through it, which
  // costs less than packing Q and dO more often. 64 blocks in all keep any machine busy; the sums depend on the block's
  // size, so it must not depend on the number of threads.
  // log: backward-block-keys, backward-even-blocks
  constexpr std::int64_t kMostKeys = 384;
  constexpr std::int64_t kBlocks = 64;
  const std::int64_t score_columns = problem.head_dim + qv_columns(problem);
  const std::int64_t key_bytes = (3 * score_columns + 2 * problem.head_dim_v) * 4;
  const std::int64_t least = whole_multiple(machine.l2_bytes / 2 / key_bytes, panel);
  const std::int64_t even = even_block(keys, whole_multiple(kMostKeys, panel), key_heads(problem), kBlocks, panel);
  Tiles tiles;
  tiles.block_n = even_block(keys, std::max(least, even), 1, 1, panel);
  // Q, dO and dS of a block of queries in 0.3 of L2, as if the block of keys were the least.
  const std::int64_t query_bytes =
      (score_columns + problem.head_dim_v + std::min(least, tiles.block_n) + 2 * panel) * 4;
  const std::int64_t multiple = machine.kernels.row_multiple;
  // log: backward-query-block
  constexpr std::int64_t kMostRows = 192;
  if (problem.modifiers.block_size != 0) {
    const std::int64_t part = masked_block(problem, kMostRows, 1);
    return {.block_m = part, .block_n = problem.modifiers.block_size, .part_m = part};
  }
  tiles.block_m = std::min({whole_multiple(machine.l2_bytes * 3 / 10 / query_bytes, multiple), round_up(rows, multiple),
                            whole_multiple(kMostRows, multiple)});
  return tiles;
}

/// Blocks of query rows whose dQ a task sums when it has all the keys of a sequence.
std::int64_t sequence_dq_blocks(const AttentionProblem& problem, const Tiles& tiles) {
  const Checked rows = Checked(problem.seqlen_q) * heads_per_group(problem);
  return (ceil_div(rows, tiles.block_m) * heads_per_key_head(problem) / heads_per_group(problem)).value();
}

/// Where one block holds all the keys of a sequence, its task has dQ alone: the phases become one, and the sums of dQ
/// stay in a worker's cache. Not where some workers would have nothing to do, which rows' phases can share, nor where
/// the workers' sums would take more memory than those of all rows.
void plan_dq(const AttentionProblem& problem, CallPlan& plan) {
  if (problem.pass != Pass::backward) return;
  const std::int64_t blocks = (Checked(plan.threads) * sequence_dq_blocks(problem, plan.tiles)).value();
  plan.whole_sequences = plan.key_blocks <= 1 && key_heads(problem) >= plan.threads && blocks <= plan.row_blocks;
  plan.dq_blocks = plan.whole_sequences ? blocks : plan.row_blocks;
}

Tiles tiles_of(const AttentionProblem& problem, const Machine& machine, const CallPlan& plan) {
  if (problem.pass != Pass::backward) {
    return plan.bfloat16_serves() ? bfloat16_forward_tiles(problem, machine, plan.threads)
                                  : forward_tiles(problem, machine, plan.threads);
  }
  return plan.bfloat16_serves() ? bfloat16_backward_tiles(problem, machine) : backward_tiles(problem, machine);
}

std::size_t worker_bytes(const AttentionProblem& problem, const Machine& machine, const CallPlan& plan) {
  const std::int64_t d = problem.head_dim;
  const std::int64_t dv = problem.head_dim_v;
  const std::int64_t qv = qv_columns(problem);
  if (problem.pass == Pass::jvp) return JvpScratch(nullptr, d, dv, plan.tiles, machine.kernels).bytes();
  if (problem.pass == Pass::forward) {
    const bool stored = problem.stored.given();
    const FewQueriesPlan& few = plan.few_queries;
    if (few.serves()) {
      return FewQueriesScratch(nullptr, d, dv, problem.has_qv, stored, few.rows, few.groups_per_task, machine.kernels)
          .arena.bytes();
    }
    return plan.bfloat16_serves()
               ? bf16::ForwardScratch(nullptr, d, dv, qv, stored, plan.tiles).arena.bytes()
               : ForwardScratch(nullptr, d, dv, qv, stored, plan.tiles, machine.kernels).arena.bytes();
  }
  return plan.bfloat16_serves()
             ? std::max(bf16::BackwardScratch(nullptr, d, dv, plan.tiles).arena.bytes(),
                        bf16::NormalizerScratch(nullptr, d).arena.bytes())
             : std::max(BackwardScratch(nullptr, d, dv, qv, problem.expression.given(), plan.tiles, machine.kernels)
                            .arena.bytes(),
                        NormalizerScratch(nullptr, d, qv, machine.kernels).arena.bytes());
}

std::string_view unit_text(bf16::Unit unit) {
  switch (unit) {
    case bf16::Unit::tiles: return " and AMX tiles; P and dS rounded to bfloat16";
    case bf16::Unit::dot_products: return " and AVX512-BF16 dot products; P and dS rounded to bfloat16";
    case bf16::Unit::none: break;
  }
  return "";
}

}  // namespace

CallPlan make_call_plan(const AttentionProblem& problem, const Machine& machine, int threads) {
  CallPlan plan;
  plan.threads = threads;
  plan.few_queries = plan_few_queries(problem, machine, threads);
  // What the bfloat16 kernels have: no JVP.
  const bool has_bfloat16 = problem.pass == Pass::backward || (problem.pass == Pass::forward && !problem.row_invariant);
  if (!plan.few_queries.serves() && takes_bfloat16(problem) && has_bfloat16) plan.bfloat16 = machine.bfloat16;
  if (problem.expression.given()) {
    // The vectors' backward and few queries alone have keys across the lanes.
    const bool backward = problem.pass == Pass::backward && !plan.bfloat16_serves();
    plan.expressions = std::make_shared<const CallExpressions>(
        problem, backward || plan.few_queries.serves() ? PanelOrder::keys_across : PanelOrder::queries_across);
  }
  plan.tiles = tiles_of(problem, machine, plan);
  plan.row_blocks = row_blocks_of(problem, plan.tiles.block_m);
  plan.key_blocks = ceil_div(problem.seqlen_k, plan.tiles.block_n);
  plan.key_tasks = (Checked(plan.key_blocks) * key_heads(problem)).value();
  plan_dq(problem, plan);
  plan.dq_rows = round_up(plan.tiles.block_m, plan.bfloat16_serves() ? bf16::kBlock : machine.kernels.row_multiple);
  plan.dq_columns = score_columns(problem.head_dim, qv_columns(problem),
                                  plan.bfloat16_serves() ? bf16::kBlock : machine.kernels.wide_panel);

  plan.dqv_columns = round_up(qv_columns(problem), machine.kernels.wide_panel);
  plan.worker_bytes = worker_bytes(problem, machine, plan);
  plan.workspace_bytes = Workspace(nullptr, problem, plan).arena.bytes();
  return plan;
}

std::string explain(const AttentionProblem& problem, const Machine& machine, const CallPlan& plan) {
  const bool forward = problem.pass != Pass::backward;  // or a JVP
  const std::int64_t group = heads_per_group(problem);
  std::string text = fmt::format("engine        cpu: the tensors are in host memory\n");
  text += fmt::format("instructions  {} ({} float32 lanes){}, float32 accumulation\n", machine.kernels.target,
                      machine.kernels.lanes, unit_text(plan.bfloat16));
  const FewQueriesPlan& few = plan.few_queries;
  text += few.serves()
              ? fmt::format(
                    "few queries   up to {} rows a head group, columns across the lanes; K and V are read in place\n",
                    few.rows)
              : fmt::format("tiles         {} query rows x {} keys, for {} KiB of L1 and {} KiB of L2\n",
                            plan.tiles.block_m, plan.tiles.block_n, machine.l1_bytes / 1024, machine.l2_bytes / 1024);
  if (problem.eight_bit.given()) {
    text += fmt::format("8-bit inputs  {}; P rounded to {} relative to its row's largest of every {} keys\n",
                        name_of(problem.dtype), problem.dtype == DType::int8 ? "8 unsigned bits" : "float8_e4m3",
                        plan.tiles.block_n);
  }
  if (problem.stored.given()) {
    text += fmt::format("stored K, V   {}; each tile is converted to {} before it is used\n",
                        name_of(problem.stored.dtype), name_of(problem.dtype));
  }
  if (problem.page_size != 0) {
    text +=
        fmt::format("pages         of {} rows, up to {} for a sequence: tiles are packed from where their rows lie\n",
                    problem.page_size, problem.seqlen_k / problem.page_size);
  }
  if (problem.pass == Pass::forward && problem.row_invariant) {
    text +=
        fmt::format("row-invariant a row's keys in tiles of {}, counted from its sequence's first, in their order\n",
                    plan.tiles.block_n);
  }
  if (!is_normalized(problem)) text += "normalize     none: P is the scores; no maximum, no sum\n";
  if (group > 1) text += fmt::format("grouped heads {} query heads share a key head and its packed tiles\n", group);
  if (problem.modifiers.block_size != 0) {
    text += fmt::format("block mask    blocks of {}: hidden ones are skipped{}\n", problem.modifiers.block_size,
                        group == 1 && problem.heads_q > problem.heads_kv ? ", head by head" : "");
  }
  if (problem.has_qv) text += "qv            its products with V join those of Q with K\n";
  if (problem.has_offsets) text += "positions     by offsets: sequences are parts of longer ones\n";
  if (problem.has_tree_mask) text += "tree mask     a bit for each of a sequence's last keys, as many as its queries\n";
  if (few.serves() && problem.row_invariant) {
    text += fmt::format("tasks         up to {}, each all the keys of a sequence for {} head groups\n", few.tasks,
                        few.groups_per_task);
  } else if (few.serves()) {
    text += fmt::format("tasks         up to {} chunks of {} keys for {} head groups, merged in the keys' order\n",
                        few.tasks, kFewQueriesChunk, few.groups_per_task);
  } else if (forward) {
    text +=
        fmt::format("tasks         up to {} blocks of query rows, each over all the keys it sees\n", plan.row_blocks);
  } else if (plan.whole_sequences) {
    text += fmt::format("tasks         {} sequences and key heads, each with all its keys and queries\n",
                        key_heads(problem));
  } else {
    text +=
        fmt::format("tasks         up to {} blocks of keys, each over all the queries that see it; dQ in key order\n",
                    plan.key_tasks);
  }
  text += fmt::format("threads       {}; the result's bits do not depend on their number\n", plan.threads);
  text += fmt::format("workspace     {} bytes ({} a thread)\n", plan.workspace_bytes, plan.worker_bytes);
  return text;
}

}  // namespace strobe::cpu
