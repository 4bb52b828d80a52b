// SPDX-License-Identifier: Apache-2.0
#include "hopper/split_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "call/arithmetic.h"

namespace strobe::hopper {
namespace {

// A part of fewer keys takes less time than putting it together does.
constexpr std::int64_t kLeastKeysOfPart = 256;
constexpr std::int64_t kLeastKeys = 4 * kLeastKeysOfPart;
// With more rows a tile computes for as long as it reads, and its parts are larger.
constexpr std::int64_t kLeastKeysOfManyRows = 8192;
// With so many rounds of tiles the last one's idle multiprocessors are few.
constexpr std::int64_t kRounds = 4;
constexpr std::int64_t kMostBlocks = 1 << 30;  // of all tiles: counted in 32 bits

std::int64_t rows_of(const AttentionProblem& problem, const forward::Config& config) {
  return problem.seqlen_q * config.packed_heads;
}

bool can_split(const AttentionProblem& problem, const forward::Config& config) {
  const ScoreRule& rule = config.rule;
  if (rule.row_invariant && config.segment_blocks == 0) return false;
  if (eight_bit(config) || rule.bias || rule.dropout || rule.block_mask != 0) return false;
  // Four warpgroups have no registers for it.
  if (!config.persistent || config.consumer_warpgroups > 3) return false;
  return !rule.varlen || problem.batch <= kMaxSortedSequences;
}

/// Of row-invariant calls, whose parts are segments of so many keys that the memory which they take is little.
int segment_workers(const AttentionProblem& problem, const forward::Config& config, std::int64_t tiles,
                    std::int64_t multiprocessors) {
  constexpr std::int64_t kMostSlotBytes = std::int64_t{512} << 20;
  const std::int64_t segments = segments_of(problem, config);
  const bool few_rows = rows_of(problem, config) <= kRowsPerWarpgroup;
  const std::int64_t slot_bytes = std::min<std::int64_t>(block_m(config), rows_of(problem, config)) *
                                  (4 * config.head_dim_v + static_cast<std::int64_t>(sizeof(PartStatistics)));
  if (segments > steps::kMostParts || tiles * segments * slot_bytes > kMostSlotBytes) return 0;
  // Tiles that occupy most of the multiprocessors join their own segments: parts would be written and read once more.
  constexpr double kMost = 0.85;
  const std::int64_t rounds = ceil_div(tiles, multiprocessors);
  if (static_cast<double>(tiles) >= kMost * static_cast<double>(rounds * multiprocessors)) return 0;
  if (few_rows ? tiles >= kRounds * multiprocessors : 2 * tiles > multiprocessors) return 0;
  return static_cast<int>(std::min(multiprocessors, tiles * segments));
}

}  // namespace

std::int64_t segments_of(const AttentionProblem& problem, const forward::Config& config) {
  return ceil_div<std::int64_t>(problem.seqlen_k, std::int64_t{config.segment_blocks} * config.block_n);
}

int split_workers(const AttentionProblem& problem, const forward::Config& config, std::int64_t tiles, std::int64_t keys,
                  const DeviceShape& shape) {
  if (tiles == 0 || !can_split(problem, config)) return 0;
  const std::int64_t multiprocessors = shape.multiprocessors;
  if (config.segment_blocks > 0) return segment_workers(problem, config, tiles, multiprocessors);
  const bool few_rows = rows_of(problem, config) <= kRowsPerWarpgroup;
  const std::int64_t blocks = ceil_div<std::int64_t>(keys, config.block_n);
  if (keys < (few_rows ? kLeastKeys : kLeastKeysOfManyRows) || tiles * blocks > kMostBlocks) return 0;
  if (few_rows ? tiles >= kRounds * multiprocessors : 2 * tiles > multiprocessors) return 0;
  const std::int64_t most_parts = std::max<std::int64_t>(1, keys / kLeastKeysOfPart);
  // Lengths that only the device knows: all multiprocessors, whatever they are.
  if (config.rule.varlen) return static_cast<int>(std::min(multiprocessors, tiles * most_parts));
  // Whole parts of tiles, where they occupy most of the multiprocessors: no CTA then works on two tiles.
  const std::int64_t parts = std::min(multiprocessors / tiles, most_parts);
  const std::int64_t whole = tiles * parts;
  constexpr double kMost = 0.85;
  if (parts == most_parts || static_cast<double>(whole) >= kMost * static_cast<double>(multiprocessors)) {
    return parts <= 1 ? 0 : static_cast<int>(whole);
  }
  return static_cast<int>(multiprocessors);
}

SplitPlan split_plan(const AttentionProblem& problem, const forward::Config& config, const TileParams& tiles,
                     int workers) {
  SplitPlan plan;
  plan.slot_rows = static_cast<int>(std::min<std::int64_t>(block_m(config), rows_of(problem, config)));
  const auto take = [&](std::int64_t count, std::size_t size) {
    constexpr std::size_t kAlignment = 256;
    const std::size_t at = plan.total_bytes;
    plan.total_bytes += round_up(static_cast<std::size_t>(count) * size, kAlignment);
    return at;
  };
  const bool segments = config.segment_blocks > 0;
  const std::int64_t slots = segments ? tiles.tiles * segments_of(problem, config) : std::int64_t{2} * workers;
  const std::int64_t rows = slots * plan.slot_rows;
  plan.tiles = take(tiles.tiles, sizeof(TileParts));
  plan.statistics = take(rows, sizeof(PartStatistics));
  plan.sums = take(rows, static_cast<std::size_t>(config.head_dim_v) * sizeof(float));
  // A tile's last CTA may have begun it anywhere, and its first one before it.
  const bool one_length = !config.rule.varlen && !is_masked(config.rule);
  plan.combine = {.element = config.rule.element,
                  .head_dim_v = config.head_dim_v,
                  .few_parts = one_length && ceil_div(workers, tiles.tiles) < steps::kFewParts,
                  .varlen = config.rule.varlen,
                  .segments = segments,
                  .sink = segments && config.rule.sink};
  return plan;
}

SplitParams split_params(const SplitPlan& plan, std::byte* workspace) {
  return {.tiles = reinterpret_cast<TileParts*>(workspace + plan.tiles),
          .statistics = reinterpret_cast<PartStatistics*>(workspace + plan.statistics),
          .sums = reinterpret_cast<float*>(workspace + plan.sums),
          .slot_rows = plan.slot_rows};
}

std::string explain_split(const AttentionProblem& problem, const TileParams& tiles, int workers) {
  const bool device_knows = problem.packed_q || problem.packed_k || problem.has_seqused_q || problem.has_seqused_k;
  if (device_knows) {
    return fmt::format("split keys    {} CTAs share the keys of all sequences, by the lengths that the device finds\n",
                       workers);
  }
  if (workers % tiles.tiles == 0) {
    return fmt::format("split keys    {} CTAs share the keys of a tile: there are fewer tiles than multiprocessors\n",
                       workers / tiles.tiles);
  }
  return fmt::format("split keys    {} CTAs share the keys of {} tiles, which are no whole rounds of them\n", workers,
                     tiles.tiles);
}

}  // namespace strobe::hopper
