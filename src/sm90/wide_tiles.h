// SPDX-License-Identifier: Apache-2.0
// Heads of more than 256 columns: widths, tiles and fields of the wide loop.
#pragma once

#include <optional>

#include "call/problem.h"
#include "gpu/plan/supported.h"
#include "kernels/sm90/forward/config.h"

namespace strobe::sm90 {

using gpu::has_wide_heads;

/// `call` with the columns that a wide loop is compiled for.
forward::Config with_wide_columns(const forward::Config& call, const AttentionProblem& problem);

/// `call`, whose columns are wide, with its tiles.
forward::Config with_wide_tiles(const forward::Config& call);

/// Wide tiles for calls in which V is K's first columns, if there is a variant that loads those once. Its other fields
/// are to be completed again.
std::optional<forward::Config> with_values_in_keys(const forward::Config& tiles, const AttentionProblem& problem);

/// Wide tiles, whose schedule is known, with what registers and shared memory leave.
forward::Config completed_wide(const forward::Config& tiles);

}  // namespace strobe::sm90
