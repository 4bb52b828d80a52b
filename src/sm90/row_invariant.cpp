// SPDX-License-Identifier: Apache-2.0
#include "sm90/row_invariant.h"

#include <algorithm>
#include <vector>

#include "gpu/plan/row_invariant.h"
#include "sm90/forward_plan.h"
#include "sm90/forward_tiles.h"
#include "sm90/tile_candidates.h"
#include "sm90/tile_fit.h"

namespace strobe::sm90 {
namespace {

using forward::Config;

/// Keys per step: what a row's sums are made of. log: sm90-forward-row-invariant-calls-table
int keys_per_step(int widest) {
  if (widest <= 64) return 64;
  if (widest <= 128) return 128;
  return widest <= 192 ? 96 : 64;
}

/// Warpgroups and whether they take turns.
struct Shape {
  int warpgroups;
  bool ping_pong;
};

constexpr int kMostRawStages = 4;

/// The same keys per step, of as many stages as fit. Producers that convert K and V as they are stored have a ring of
/// those, too, and another warpgroup.
std::vector<Tiles> tiles_of(const Config& call, const Shape& shape, int block_n) {
  std::vector<Tiles> tiles;
  if (converts(call)) {
    for (int raw_stages = kMostRawStages; raw_stages > 0; --raw_stages) {
      tiles.push_back({shape.warpgroups, block_n, 2, 1, 1, shape.ping_pong, raw_stages, 2});
    }
    return tiles;
  }
  const int q_stages = shape.warpgroups > 1 ? 2 : 1;
  for (const int stages : {4, 3, 2}) {
    for (const int of_q : {q_stages, 1}) tiles.push_back({shape.warpgroups, block_n, stages, of_q, 1, shape.ping_pong});
  }
  return tiles;
}

Shape shape_of(const Config& call, std::int64_t rows) {
  const ScoreRule& rule = call.rule;
  const bool narrow = std::max(call.head_dim, call.head_dim_v) <= 64 && call.keys != forward::KeySource::page_rows;
  // Joining takes registers that two do not leave beside producers that convert.
  if (rows <= kRowsPerWarpgroup || converts(call)) return {1, true};
  if (!narrow) return {2, true};
  // Joining takes registers that four do not leave.
  return {call.segment_blocks > 0 || (rule.alibi && rule.mask_left) ? 3 : 4, false};
}

}  // namespace

Config with_row_invariant_tiles(const Config& call, const AttentionProblem& problem) {
  const int widest = std::max(call.head_dim, call.head_dim_v);
  const int block_n = keys_per_step(widest);
  Config segmented = call;
  segmented.segment_blocks = gpu::segment_blocks(problem, widest, block_n);
  if (call.rule.varlen) segmented.schedule = Schedule::sorted;  // whose table must fit, too
  const Shape shape = shape_of(segmented, packed_rows(problem, call));
  return first_that_fits(segmented, tiles_of(call, shape, block_n), fits_shared_memory);
}

Config with_kept_segments(const Config& config) {
  if (!folds(config)) return config;
  Config kept = config;
  kept.keeps_in_smem = true;
  if (fits_shared_memory(kept)) return kept;
  kept.q_stages = 1;
  for (kept.stages = config.stages; kept.stages >= 2; --kept.stages) {
    if (fits_shared_memory(kept)) return kept;
  }
  return config;
}

}  // namespace strobe::sm90
