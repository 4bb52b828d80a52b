// SPDX-License-Identifier: Apache-2.0
#include "sm90/stored_tiles.h"

#include <vector>

#include "sm90/forward_tiles.h"
#include "sm90/tile_candidates.h"
#include "sm90/tile_fit.h"

namespace strobe::sm90 {
namespace {

using forward::Config;

int block_n_of_16_bits(const Config& call, const AttentionProblem& problem) {
  Config wide = call;
  wide.stored = call.rule.element;
  return with_tiles(wide, problem).block_n;
}

}  // namespace

Config with_stored_tiles(const Config& call, const AttentionProblem& problem) {
  constexpr int kMostRawStages = 4;
  const int wanted = block_n_of_16_bits(call, problem);
  std::vector<Tiles> candidates;
  // One consumer warpgroup reads keys and values faster than three warps convert them.
  const auto add = [&](int warpgroups, int block_n, int least_raw_stages) {
    for (int raw_stages = kMostRawStages; raw_stages >= least_raw_stages; --raw_stages) {
      candidates.push_back({warpgroups, block_n, 2, 1, 1, true, raw_stages, warpgroups == 1 ? 2 : 1});
    }
  };
  if (packed_rows(problem, call) > kRowsPerWarpgroup) add(2, wanted, 2);
  for (const int block_n : kBlockN) {
    if (block_n <= wanted) add(1, block_n, 1);
  }
  Config sorted = call;
  if (call.rule.varlen) sorted.schedule = Schedule::sorted;  // whose table must fit, too
  return first_that_fits(sorted, candidates,
                         [](const Config& config) { return fits_options(config) && fits_shared_memory(config); });
}

}  // namespace strobe::sm90
