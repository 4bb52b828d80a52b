// SPDX-License-Identifier: Apache-2.0
#include "gpu/plan/few_queries.h"

#include <fmt/format.h>

#include <algorithm>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "call/visible_keys.h"
#include "gpu/plan/append_part.h"
#include "gpu/plan/choice.h"
#include "gpu/plan/supported.h"

namespace strobe::gpu {
namespace {

// log: sm90-forward-split-keys-table

// A part of fewer keys takes less time than putting it together does.
constexpr std::int64_t kLeastKeysOfPart = 256;
constexpr std::int64_t kLeastKeys = 4 * kLeastKeysOfPart;
// With more rows a tile computes for as long as it reads, and its parts are larger.
constexpr std::int64_t kLeastKeysOfManyRows = 8192;
// With so many rounds of tiles the last one's idle multiprocessors are few.
constexpr std::int64_t kRounds = 4;
constexpr std::int64_t kMostKeyBlocks = 1 << 30;  // of all tiles: counted in 32 bits
constexpr double kMostlyOccupied = 0.85;          // of multiprocessors, by whole tiles or parts

/// Queries of a sequence, on average.
std::int64_t mean_queries(const AttentionProblem& problem) {
  if (!problem.packed_q || problem.batch == 0) return problem.seqlen_q;
  return std::min(problem.seqlen_q, problem.total_q / problem.batch + 1);
}

bool can_split(const AttentionProblem& problem, const SplitKernel& kernel) {
  const ScoreRule& rule = kernel.rule;
  if (rule.row_invariant && kernel.segments == 0) return false;
  if (rule.bias || rule.dropout || rule.block_mask != 0) return false;
  return !rule.varlen || problem.batch <= kMaxTableSequences;
}

/// Row-invariant calls: parts are segments, of so many keys that the memory which they take is little.
int segment_workers(const SplitKernel& kernel, std::int64_t tiles) {
  constexpr std::int64_t kMostSlotBytes = std::int64_t{512} << 20;
  const std::int64_t slot_bytes = std::min<std::int64_t>(kernel.block_m, kernel.rows) *
                                  (4 * kernel.head_dim_v + static_cast<std::int64_t>(sizeof(PartStatistics)));
  if (kernel.segments > auxiliary::kMostParts) return 0;
  if (!(Checked(tiles) * kernel.segments * slot_bytes).at_most(kMostSlotBytes)) return 0;
  if (occupy_most(tiles, kernel.ctas)) return 0;  // tiles join their own segments
  if (kernel.rows <= kFewRows ? tiles >= kRounds * kernel.ctas : 2 * tiles > kernel.ctas) return 0;
  return static_cast<int>(std::min(kernel.ctas, tiles * kernel.segments));
}

/// As many as that, but no more than run at a time and have enough keys each.
int wanted_workers(const SplitKernel& kernel, std::int64_t tiles, std::int64_t keys, int wanted) {
  const std::int64_t most_parts = std::max<std::int64_t>(1, keys / kLeastKeysOfPart);
  const std::int64_t workers = std::min({std::int64_t{wanted}, kernel.ctas, (Checked(tiles) * most_parts).value()});
  return workers <= 1 ? 0 : static_cast<int>(workers);
}

}  // namespace

std::int64_t most_visible_keys(const AttentionProblem& problem, const ScoreRule& rule) {
  if (!rule.mask_left || !rule.mask_right) return problem.seqlen_k;
  const VisibleKeys visible = visible_keys(problem);
  const std::int64_t band = std::min(problem.seqlen_k, visible.left + visible.right + 1);
  return visible.chunk > 0 ? std::min(band, visible.chunk) : band;
}

int choose_packed_heads(const AttentionProblem& problem) {
  if (problem.heads_kv == 0 || problem.heads_q == problem.heads_kv) return 1;
  if (problem.modifiers.block_size != 0) return 1;  // a tile's rows lie in one row of the block mask
  if (problem.eight_bit.given()) return 1;          // and have scales of their own
  if (problem.dropout != 0.0F) return 1;            // neighbouring rows are neighbouring queries
  constexpr std::int64_t kRows = 128;               // of most tiles
  constexpr std::int64_t kMostPacked = 64;
  const std::int64_t group = problem.heads_q / problem.heads_kv;
  const int packed = static_cast<int>(std::min<std::int64_t>(group & -group, kMostPacked));
  if (problem.seqlen_q > kMaxInt / 4 / packed) return 1;  // rows are counted in 32 bits
  const std::int64_t alone = packed * ceil_div<std::int64_t>(mean_queries(problem), kRows);
  return 10 * ceil_div<std::int64_t>(mean_queries(problem) * packed, kRows) <= 9 * alone ? packed : 1;
}

std::int64_t usual_rows(const AttentionProblem& problem, int packed_heads) {
  const std::int64_t most = (Checked(problem.seqlen_q) * packed_heads).value();
  if (most > kFewRows || problem.row_invariant) return most;  // a row's bits are the same in every batch
  return mean_queries(problem) * packed_heads;
}

bool occupy_most(std::int64_t tiles, std::int64_t ctas) {
  const std::int64_t rounds = ceil_div(tiles, ctas);
  return static_cast<double>(tiles) >= kMostlyOccupied * static_cast<double>(rounds * ctas);
}

int split_workers(const AttentionProblem& problem, const SplitKernel& kernel, std::int64_t tiles, std::int64_t keys,
                  int wanted) {
  if (tiles == 0 || problem.total_q == 0 || !can_split(problem, kernel)) return 0;
  if (kernel.segments > 0) return segment_workers(kernel, tiles);
  const bool few_rows = kernel.rows <= kFewRows;
  const std::int64_t blocks = ceil_div<std::int64_t>(keys, kernel.block_n);
  if (keys < (few_rows ? kLeastKeys : kLeastKeysOfManyRows)) return 0;
  if (!(Checked(tiles) * blocks).at_most(kMostKeyBlocks)) return 0;
  if (wanted != 0) return wanted_workers(kernel, tiles, keys, wanted);
  if (few_rows ? tiles >= kRounds * kernel.ctas : 2 * tiles > kernel.ctas) return 0;
  const std::int64_t most_parts = std::max<std::int64_t>(1, keys / kLeastKeysOfPart);
  // Lengths that only the device knows: all CTAs, whatever they are.
  if (kernel.rule.varlen) return static_cast<int>(std::min(kernel.ctas, tiles * most_parts));
  // Whole parts of tiles, where they occupy most of the multiprocessors: no CTA then works on two tiles.
  const std::int64_t parts = std::min(kernel.ctas / tiles, most_parts);
  const std::int64_t whole = tiles * parts;
  if (parts == most_parts || static_cast<double>(whole) >= kMostlyOccupied * static_cast<double>(kernel.ctas)) {
    return parts <= 1 ? 0 : static_cast<int>(whole);
  }
  return static_cast<int>(kernel.ctas);
}

std::vector<int> other_splits(int rule, std::int64_t ctas, std::int64_t tiles, bool varlen) {
  std::vector<int> splits;
  const auto add = [&](std::int64_t workers) {
    const bool is_new = workers != rule && std::ranges::find(splits, workers) == splits.end();
    if (workers > 1 && workers <= ctas && is_new) splits.push_back(static_cast<int>(workers));
  };
  const std::int64_t parts = std::max<std::int64_t>(1, ctas / std::max<std::int64_t>(1, tiles));
  for (const std::int64_t workers : {ctas, parts * tiles, (parts - 1) * tiles, parts / 2 * tiles, ctas / 2}) {
    add(workers);
  }
  if (rule > 0 && !varlen) splits.push_back(Choice::kWhole);
  return splits;
}

SplitPlan split_plan(const SplitKernel& kernel, int tiles, int workers) {
  SplitPlan plan;
  // At least one, as kernels divide by it: packed rows may all be behind the last sequence.
  plan.slot_rows = static_cast<int>(std::clamp<std::int64_t>(kernel.rows, 1, kernel.block_m));
  const auto take = [&](std::int64_t count, std::size_t size) {
    return append_part(plan.total_bytes, Checked(count) * size);
  };
  const bool segments = kernel.segments > 0;
  const Checked slots = segments ? Checked(tiles) * kernel.segments : Checked(2) * workers;
  const std::int64_t rows = (slots * plan.slot_rows).value<int>();  // jobs of the kernel that combines them
  plan.tiles = take(tiles, sizeof(TileParts));
  plan.statistics = take(rows, sizeof(PartStatistics));
  plan.sums = take(rows, static_cast<std::size_t>(kernel.head_dim_v) * sizeof(float));
  // A tile's last CTA may have begun it anywhere, and its first one before it.
  const bool one_length = !kernel.rule.varlen && !has_diagonal(kernel.rule);
  plan.combine = {.element = kernel.rule.element,
                  .head_dim_v = kernel.head_dim_v,
                  .few_parts = one_length && ceil_div(workers, tiles) < auxiliary::kFewParts,
                  .varlen = kernel.rule.varlen,
                  .segments = segments,
                  .sink = segments && kernel.rule.sink,
                  .normalized = kernel.rule.normalized};
  return plan;
}

SplitParams split_params(const SplitPlan& plan, std::byte* workspace) {
  return {.tiles = reinterpret_cast<TileParts*>(workspace + plan.tiles),
          .statistics = reinterpret_cast<PartStatistics*>(workspace + plan.statistics),
          .sums = reinterpret_cast<float*>(workspace + plan.sums),
          .slot_rows = plan.slot_rows};
}

std::string explain_split(const AttentionProblem& problem, int tiles, int workers) {
  const bool device_knows = problem.packed_q || problem.packed_k || problem.has_seqused_q || problem.has_seqused_k;
  if (device_knows) {
    return fmt::format("split keys    {} CTAs share the keys of all sequences, by the lengths that the device finds\n",
                       workers);
  }
  if (workers % tiles == 0) {
    return fmt::format("split keys    {} CTAs share the keys of a tile: there are fewer tiles than multiprocessors\n",
                       workers / tiles);
  }
  return fmt::format("split keys    {} CTAs share the keys of {} tiles, which are no whole rounds of them\n", workers,
                     tiles);
}

}  // namespace strobe::gpu
