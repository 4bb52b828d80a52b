// SPDX-License-Identifier: Apache-2.0
// Tiles of row-invariant forwards: a row's blocks and segments of keys are the same in every call.
#pragma once

#include "call/problem.h"
#include "kernels/sm90/forward/config.h"

namespace strobe::sm90 {

/// `call` with as many warpgroups as its rows and the registers allow, for one number of keys per step and segment.
forward::Config with_row_invariant_tiles(const forward::Config& call, const AttentionProblem& problem);

/// Once the schedule is chosen: what segments leave stays in shared memory where stages of K and V are left beside it.
forward::Config with_kept_segments(const forward::Config& config);

}  // namespace strobe::sm90
