// SPDX-License-Identifier: Apache-2.0
// What a forward's threads have of registers, and what their tiles take of them: estimates, as compiling showed them.
#pragma once

#include "kernels/sm90/forward/config.h"

namespace strobe::sm90 {

/// Registers of a thread of each role.
struct RoleRegisters {
  int producer, consumer;
};

/// By what producers do beside issuing TMA, and by how many warpgroups share a multiprocessor's registers: the most for
/// consumers with which producers do not spill.
RoleRegisters role_registers(const forward::Config& config);

/// Registers of a consumer's thread beside the tile's, roughly: eight for each option that keeps numbers of its rows,
/// and what Philox computes in.
int option_registers(const ScoreRule& rule);

/// Whether a consumer's registers hold the tiles. The narrowest ones always do: they spill least.
bool fits_registers(const forward::Config& config);

/// The loop over 16-bit operands: pipelined where registers hold the scores of a block beside P of the one before.
forward::Loop loop_of(const forward::Config& config);

}  // namespace strobe::sm90
