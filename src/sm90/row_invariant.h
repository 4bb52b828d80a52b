// SPDX-License-Identifier: Apache-2.0
// Tiles of row-invariant forwards: a row's blocks and segments of keys are the same in every call.
#pragma once

#include "call/problem.h"
#include "kernels/sm90/forward/config.h"

namespace strobe::sm90 {

/// As many warpgroups as the call's rows and the registers allow, for one number of keys per step and segment.
void choose_row_invariant_tiles(forward::Config& config, const AttentionProblem& problem);

/// Once the schedule is chosen: what segments leave stays in shared memory where stages of K and V are left beside it.
void choose_kept(forward::Config& config);

}  // namespace strobe::sm90
