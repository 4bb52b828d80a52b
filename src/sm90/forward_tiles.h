// SPDX-License-Identifier: Apache-2.0
// The tiles of a forward: tables of candidates, by what bounds a call's speed, of which the first that fits is taken.
#pragma once

#include <optional>
#include <vector>

#include "call/checked.h"
#include "call/problem.h"
#include "gpu/plan/choice.h"
#include "kernels/sm90/forward/config.h"

namespace strobe::sm90 {

/// `call`, which says what the problem asks for, with tiles for it: those that are asked for, where they may be.
forward::Config with_tiles(const forward::Config& call, const AttentionProblem& problem,
                           const gpu::Choice& choice = {});

/// `call` with each of the tiles that may be asked for: its own, and those of calls with the same options and other
/// lengths.
std::vector<forward::Config> tile_choices(const forward::Config& call, const AttentionProblem& problem);

/// `call` with tiles for a bias that TMA brings; none where shared memory does not hold them.
std::optional<forward::Config> with_aligned_bias_tiles(const forward::Config& call, const AttentionProblem& problem);

/// Rows of the longest sequence and of the heads that share a tile.
inline std::int64_t packed_rows(const AttentionProblem& problem, const forward::Config& config) {
  return (Checked(problem.seqlen_q) * config.packed_heads).value();
}

}  // namespace strobe::sm90
