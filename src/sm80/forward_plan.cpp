// SPDX-License-Identifier: Apache-2.0
#include "sm80/forward_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "gpu/params/element.h"
#include "gpu/params/score.h"
#include "gpu/plan/row_invariant.h"
#include "gpu/plan/supported.h"
#include "kernels/sm80/forward/smem.h"
#include "sm80/forward_tiles.h"
#include "sm80/supported.h"

namespace strobe::sm80 {
namespace {

/// Tiles of one sequence and head.
std::int64_t m_tiles_of(const AttentionProblem& problem, const forward::Config& config) {
  return std::max<std::int64_t>(1, ceil_div<std::int64_t>(rows_of(problem, config), block_m(config)));
}

/// Query heads of a tile together.
std::int64_t heads_of(const AttentionProblem& problem, const forward::Config& config) {
  return problem.heads_q / config.packed_heads;
}

/// Sequences, and one for the rows that may lie behind the last.
std::int64_t sequences_of(const AttentionProblem& problem) { return problem.batch + (problem.packed_q ? 1 : 0); }

/// Heads whose tiles are computed longest first, side by side. Where all tiles are as long, those of a head follow one
/// another, as they read the same keys. Otherwise as many heads as their keys and values fit in a quarter of L2, whose
/// partitions each keep a copy; but some rounds of tiles at least, so that short ones fill the gaps at the end: with
/// three, a simulation loses 1% to 3% there, with one up to 14%.
int section_heads(const AttentionProblem& problem, const DeviceShape& shape, const forward::Config& config) {
  if (!config.rule.mask_right || config.rule.mask_left) return 1;
  constexpr std::int64_t kRounds = 3;  // log: sm80-causal-sections
  const std::int64_t all = (Checked(sequences_of(problem)) * heads_of(problem, config)).value();
  const Checked row_bytes = (problem.head_dim + problem.head_dim_v) * Checked(size_of(problem.dtype));
  const auto head_bytes = std::max<std::int64_t>(1, (problem.seqlen_k * row_bytes).value());
  const std::int64_t in_l2 =
      static_cast<std::int64_t>(shape.l2_bytes) / 4 / head_bytes * (heads_of(problem, config) / problem.heads_kv);
  const std::int64_t in_rounds =
      ceil_div<std::int64_t>(kRounds * shape.multiprocessors * config.ctas_per_sm, m_tiles_of(problem, config));
  const std::int64_t sections = std::max<std::int64_t>(1, all / std::max<std::int64_t>({1, in_l2, in_rounds}));
  return static_cast<int>(ceil_div<std::int64_t>(all, sections));
}

/// Of all sequences, were each of the longest one's length.
std::int64_t most_tiles(const AttentionProblem& problem, const forward::Config& config) {
  return (Checked(m_tiles_of(problem, config)) * problem.batch * heads_of(problem, config)).value();
}

/// Rounds of CTAs that share the keys of all tiles. Rows of half a line of L2 are read with their neighbours', of the
/// next head, where the CTAs of both are side by side: with as many rounds as there are of tiles, tiles begin there.
/// log: stored-half-lines-side-by-side
std::int64_t rounds_of_parts(const AttentionProblem& problem, const forward::Config& config, std::int64_t ctas) {
  constexpr std::int64_t kHalfLine = 64;  // bytes
  constexpr std::int64_t kMostRounds = 4;
  const bool half_lines = config.stored_operands && std::max(problem.head_dim, problem.head_dim_v) <= kHalfLine;
  if (!half_lines) return 1;
  return std::clamp<std::int64_t>(ceil_div<std::int64_t>(most_tiles(problem, config), ctas), 1, kMostRounds);
}

gpu::SplitKernel split_kernel(const AttentionProblem& problem, const forward::Config& config,
                              const DeviceShape& shape) {
  constexpr std::int64_t kMostCtas = auxiliary::kMostParts;
  const std::int64_t ctas = shape.multiprocessors * config.ctas_per_sm;
  return {.rule = config.rule,
          .block_m = block_m(config),
          .block_n = config.block_n,
          .head_dim_v = config.head_dim_v,
          .rows = rows_of(problem, config),
          .ctas = std::min<std::int64_t>(kMostCtas, ctas * rounds_of_parts(problem, config, ctas)),
          .segments = gpu::segments_of(problem, config.segment_blocks * config.block_n)};
}

/// Behind left padding blocks of keys begin anywhere in a page. log: sm80-page-pieces
int page_rows_of(const AttentionProblem& problem, const forward::Config& config) {
  constexpr int kRows = 16;
  const bool whole = problem.page_size % kRows == 0 && !problem.has_leftpad_k && config.block_n % kRows == 0;
  return config.pages_ahead && whole ? kRows : 1;
}

/// 0: the keys of a tile are one CTA's.
int workers_of_split_keys(const AttentionProblem& problem, const forward::Config& config, const DeviceShape& shape,
                          const gpu::Choice& choice) {
  return gpu::split_workers(problem, split_kernel(problem, config, shape), most_tiles(problem, config),
                            gpu::most_visible_keys(problem, config.rule), choice.split_ctas);
}

std::string explain_pipeline(const forward::Config& c) {
  if (sliced(c)) {
    return fmt::format("pipeline      {} stages of {} columns of K or V, one after another\n", c.stages,
                       c.slice_columns);
  }
  if (c.stages == 1 && !converts(c)) {
    return "pipeline      one stage of K and of V: each arrives under the other's product\n";
  }
  return fmt::format("pipeline      {} stages of K and V{}\n", c.stages,
                     c.copies_first ? ", copied before a step's products" : "");
}

}  // namespace

Result<forward::Config> forward_config(const AttentionProblem& problem, const DeviceShape& shape,
                                       const gpu::Choice& choice) {
  if (Status status = check_supported(problem); !status.ok()) return status;
  forward::Config config{.rule = gpu::score_rule(problem)};
  choose_columns(config, problem);
  config.packed_heads = gpu::choose_packed_heads(problem);
  config.pages = problem.page_size != 0;
  config.entries = problem.has_cache_batch_idx;
  if (problem.stored.given()) config.stored = gpu::element_of(problem.stored.dtype);
  config.schedule = Schedule::split;
  choose_tiles(config, problem, shape, choice);
  if (workers_of_split_keys(problem, config, shape, choice) == 0) {
    config.schedule = Schedule::rounds;
    choose_tiles(config, problem, shape, choice);
  }
  config.page_rows = page_rows_of(problem, config);
  const std::int64_t tiles =
      (Checked(m_tiles_of(problem, config)) * sequences_of(problem) * heads_of(problem, config)).value();
  if (tiles > gpu::kMaxInt) {
    return gpu::unsupported("{} tiles of {} query rows: the sm80 kernels take up to {}", tiles, block_m(config),
                            gpu::kMaxInt);
  }
  return config;
}

ForwardPlan forward_plan(const AttentionProblem& problem, const DeviceShape& shape, const forward::Config& config,
                         const gpu::Choice& choice) {
  ForwardPlan plan;
  plan.config = config;
  const int heads = (Checked(sequences_of(problem)) * heads_of(problem, config)).value<int>();
  if (heads == 0 || problem.total_q == 0) return plan;
  forward::TileOrder& order = plan.order;
  order.heads = static_cast<int>(heads_of(problem, config));
  order.m_tiles = static_cast<int>(m_tiles_of(problem, config));
  order.section_heads =
      choice.section_heads > 0 ? std::min(choice.section_heads, heads) : section_heads(problem, shape, config);
  order.full_sections = heads / order.section_heads;
  order.by_section = Divisor::of((Checked(order.section_heads) * order.m_tiles).value<int>());
  order.by_heads = Divisor::of(order.heads);
  order.by_section_heads = Divisor::of(order.section_heads);
  order.by_last = Divisor::of(std::max(1, heads % order.section_heads));
  plan.tiles = plan.workers = (Checked(heads) * order.m_tiles).value<int>();
  if (splits(config)) {
    plan.workers = std::max(1, workers_of_split_keys(problem, config, shape, choice));
    plan.split = gpu::split_plan(split_kernel(problem, config, shape), plan.tiles, plan.workers);
  }
  if (folds(config)) {
    plan.workers = std::min(plan.tiles, shape.multiprocessors * config.ctas_per_sm);
    plan.kept_bytes = (sizeof(float) * 4 * Checked(kept_vectors(config)) * threads_per_block(config) * plan.workers)
                          .value<std::size_t>();
  }
  return plan;
}

std::string explain(const AttentionProblem& problem, const DeviceShape& shape, const ForwardPlan& plan) {
  const forward::Config& c = plan.config;
  std::string text = fmt::format("tiles         {} query rows x {} keys, head_dim {} as {}, head_dim_v {} as {}\n",
                                 block_m(c), c.block_n, problem.head_dim, c.head_dim, problem.head_dim_v, c.head_dim_v);
  text += fmt::format(
      "warps         {} of {} rows{}{}\n", c.warps, c.rows_per_warp, c.q_in_registers ? ", Q in registers" : "",
      c.column_warps > 1 ? fmt::format(", which {} share: columns of O are theirs", c.column_warps) : "");
  if (c.key_groups > 1) {
    text +=
        fmt::format("keys          {} groups of warps take turns at the blocks: there are few queries\n", c.key_groups);
  }
  if (c.packed_heads > 1) {
    text +=
        fmt::format("heads         {} query heads of a key head share a tile: there are few queries\n", c.packed_heads);
  }
  if (c.stored_operands) {
    text += fmt::format("stored K, V   {}; operands as float16, whose scales, of {}, join scores and {}\n",
                        strobe::name_of(problem.stored.dtype), c.row_scales ? "keys" : "a head",
                        c.row_scales ? "probabilities" : "O");
  } else if (converts(c)) {
    text += fmt::format("stored K, V   {}; converted to {} block by block, up to {} chunks of a lane at once\n",
                        strobe::name_of(problem.stored.dtype), strobe::name_of(problem.dtype), c.chunks_at_once);
  }
  if (c.pages) {
    text += fmt::format("pages         of {} rows, read {}{}\n", problem.page_size,
                        c.page_rows == 1 ? "row by row" : fmt::format("{} rows at a time", c.page_rows),
                        c.pages_ahead ? "; the table a block ahead" : "");
  }
  text += fmt::format("CTAs          {} on a multiprocessor at a time\n", c.ctas_per_sm);
  text += explain_pipeline(c);
  text +=
      fmt::format("shared memory {} of {} bytes\n", smem_plan(c).total_bytes, shared_bytes_of(shape, c.ctas_per_sm));
  if (c.keeps_work) text += "work          a CTA's tile is in shared memory\n";
  if (c.rule.tree_mask) text += "tree mask     a bit for each of a sequence's last keys, as many as its queries\n";
  text += fmt::format("schedule      {} tiles{}\n", plan.tiles,
                      plan.order.section_heads > 1 ? ", the longest of several heads first" : "");
  if (splits(c)) text += gpu::explain_split(problem, plan.tiles, plan.workers);
  if (c.rule.row_invariant) text += gpu::explain_row_invariant(c.block_n, c.segment_blocks) + '\n';
  return text;
}

}  // namespace strobe::sm80
