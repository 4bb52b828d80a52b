// SPDX-License-Identifier: Apache-2.0
// Tiles of forwards whose producers convert K and V that are stored in 8 bits.
#pragma once

#include "call/problem.h"
#include "kernels/sm90/forward/config.h"

namespace strobe::sm90 {

/// `call` with tiles: converting takes registers from the consumers, and shared memory for blocks as they are stored.
/// As many keys per step as the call on 16 bits takes, so that results have its bits: but where few queries have
/// head_dims over 128 that differ, and shared memory does not hold as many.
forward::Config with_stored_tiles(const forward::Config& call, const AttentionProblem& problem);

}  // namespace strobe::sm90
