// SPDX-License-Identifier: Apache-2.0
// The tiles of a backward: a table of candidates, of which the first that takes the problem is the rule's.
#pragma once

#include <vector>

#include "call/problem.h"
#include "gpu/plan/choice.h"
#include "kernels/sm90/backward/config.h"

namespace strobe::sm90 {

/// What the problem asks for, with the tiles that `choice` asks for where they serve it, else with the rule's. The last
/// candidate takes all that the engine does.
backward::Config with_tiles(const AttentionProblem& problem, const gpu::Choice& choice = {});

/// The variants of all tiles that may be asked for.
std::vector<backward::Config> tile_choices(const AttentionProblem& problem);

}  // namespace strobe::sm90
