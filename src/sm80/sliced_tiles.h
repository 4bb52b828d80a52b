// SPDX-License-Identifier: Apache-2.0
// Wide heads: the columns that their forward is compiled for, and its tiles.
#pragma once

#include <cstdint>
#include <span>

#include "call/problem.h"
#include "kernels/sm80/forward/config.h"
#include "sm80/forward_tiles.h"

namespace strobe::sm80 {

void choose_sliced_columns(forward::Config& config, const AttentionProblem& problem);

/// By the rows of a sequence and head, fastest first. The last ones take the least memory, for each width of slices.
std::span<const Tiles> sliced_tiles_of(std::int64_t rows);

/// Of row-invariant calls: whatever else, keys are added up in the same blocks and by as many warps.
std::span<const Tiles> invariant_sliced_tiles_of(std::int64_t rows);

}  // namespace strobe::sm80
