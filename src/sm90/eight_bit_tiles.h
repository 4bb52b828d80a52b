// SPDX-License-Identifier: Apache-2.0
// Tiles of forwards on 8-bit operands.
#pragma once

#include "call/problem.h"
#include "kernels/sm90/forward/config.h"

namespace strobe::sm90 {

/// `call` with what 8-bit operands ask for: their elements, scales and rotation.
forward::Config with_eight_bit_operands(const forward::Config& call, const AttentionProblem& problem);

/// `call` with the loop and the tiles.
forward::Config with_eight_bit_tiles(const forward::Config& call, const AttentionProblem& problem);

}  // namespace strobe::sm90
