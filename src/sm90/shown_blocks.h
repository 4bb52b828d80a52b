// SPDX-License-Identifier: Apache-2.0
// How many blocks of keys the rows of a tile see under a mask that is a text.
#pragma once

#include <vector>

#include "call/problem.h"
#include "kernels/sm90/forward/config.h"

namespace strobe::sm90 {

/// Whether tiles pass over blocks of keys that a text hides.
bool walks_by_text(const ScoreRule& rule);

/// Whether the host knows which: the mask reads positions and lengths alone, which all heads and sequences have in
/// common.
bool knows_shown_blocks(const AttentionProblem& problem, const forward::Config& config);

/// Of each tile of a head, where the host knows them. Of long sequences several neighbouring blocks are looked at
/// together: then all of them count where one is seen.
std::vector<double> shown_blocks(const AttentionProblem& problem, const forward::Config& config);

}  // namespace strobe::sm90
