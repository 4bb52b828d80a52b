// SPDX-License-Identifier: Apache-2.0
// What a variant's tiles take of shared memory and registers.
#pragma once

#include "kernels/sm90/forward/config.h"

namespace strobe::sm90 {

/// Whether a multiprocessor has the shared memory of as many CTAs as the variant wants.
bool fits(const forward::Config& config);

/// Registers of a thread that hold scores, probabilities, output and a fetched bias.
int tile_registers(const forward::Config& config, int block_n);

/// Registers of a thread beside the tile's, roughly: eight for each option that keeps numbers of its rows, and what
/// Philox computes in.
int option_registers(const ScoreRule& rule);

}  // namespace strobe::sm90
