// SPDX-License-Identifier: Apache-2.0
#include "sm90/dealt_tiles.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "call/eight_bit.h"
#include "sm90/schedule.h"
#include "sm90/shown_blocks.h"

namespace strobe::sm90 {
namespace {

constexpr double kTileOverhead = 1.5;  // of blocks: what a tile's start and end take

/// Heads whose keys and values are in use at a time: a quarter of L2, as the other half of each line's copies is on the
/// far partition, and Q and O pass through, too. Heads of 2 MB and more may take three fifths of it, for two rounds of
/// tiles.
int section_heads(const AttentionProblem& problem, const DeviceShape& shape, const ForwardPlan& plan) {
  constexpr std::int64_t kLongHead = 2 << 20;
  constexpr std::int64_t kRounds = 2;
  const std::int64_t head_bytes =
      std::max<std::int64_t>(1, problem.seqlen_k * (problem.head_dim + problem.head_dim_v) *
                                    static_cast<std::int64_t>(size_of(stored_dtype(problem))));
  const auto l2_bytes = static_cast<std::int64_t>(shape.l2_bytes);
  const std::int64_t group = problem.heads_q / problem.heads_kv / plan.config.packed_heads;
  std::int64_t heads = l2_bytes / 4 / head_bytes * group;
  if (head_bytes >= kLongHead) {
    const std::int64_t most = l2_bytes * 3 / 5 / head_bytes * group;
    heads = std::max(heads, std::min(most, kRounds * plan.workers / plan.tiles.m_tiles));
  }
  return static_cast<int>(std::clamp<std::int64_t>(heads, 1, (Checked(plan.tiles.heads) * problem.batch).value()));
}

}  // namespace

// Where some warpgroups have no rows or see no keys
// further right, the others take less time, but not much: they wait for their own products.
double tile_cost(const AttentionProblem& problem, const VisibleKeys& visible, const forward::Config& config, int m) {
  constexpr double kLeastShare = 0.75;
  const std::int64_t rows = packed_rows(problem, config);
  const std::int64_t first_row = static_cast<std::int64_t>(m) * block_m(config);
  const std::int64_t warpgroups =
      std::min<std::int64_t>(config.consumer_warpgroups, ceil_div<std::int64_t>(rows - first_row, kRowsPerWarpgroup));
  double cost = kTileOverhead;
  const std::int64_t first_key = visible.begin(first_row / config.packed_heads);
  std::int64_t counted = first_key / config.block_n;  // blocks, from the first key on
  for (std::int64_t warpgroup = 0; warpgroup < warpgroups; ++warpgroup) {
    const std::int64_t last_row = std::min(first_row + (warpgroup + 1) * kRowsPerWarpgroup, rows) - 1;
    const std::int64_t end = ceil_div<std::int64_t>(visible.end(last_row / config.packed_heads), config.block_n);
    const std::int64_t blocks = std::max(counted, end);
    const double share = static_cast<double>(warpgroups - warpgroup) / config.consumer_warpgroups;
    cost += static_cast<double>(blocks - counted) * std::max(share, kLeastShare);
    counted = blocks;
  }
  return cost;
}

std::shared_ptr<const TileList> deal_tiles(const AttentionProblem& problem, const DeviceShape& shape,
                                           const ForwardPlan& plan) {
  const VisibleKeys visible = visible_keys(problem);
  const int packed = plan.config.packed_heads;
  DealtTiles tiles;
  tiles.m_tiles = plan.tiles.m_tiles;
  tiles.heads = (Checked(problem.batch) * problem.heads_q / packed).value<int>();
  tiles.section_heads = section_heads(problem, shape, plan);
  tiles.workers = plan.workers;
  std::vector<double> shown;
  if (walks_by_text(plan.config.rule)) shown = shown_blocks(problem, plan.config);
  tiles.cost = [&](int m) {
    return shown.empty() ? tile_cost(problem, visible, plan.config, m)
                         : kTileOverhead + shown[static_cast<std::size_t>(m)];
  };
  return std::make_shared<const TileList>(deal(tiles));
}

}  // namespace strobe::sm90
