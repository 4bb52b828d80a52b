// SPDX-License-Identifier: Apache-2.0
// The forward whose producers read K's rows in a format, and convert them: rows that lists name, and latent rows of a
// cache in 8 bits.
#pragma once

#include <optional>

#include "gpu/plan/choice.h"
#include "gpu/plan/device.h"
#include "kernels/sm90/forward/config.h"
#include "strobe/row_format.h"
#include "strobe/status.h"

namespace strobe {
struct AttentionProblem;
}

namespace strobe::sm90 {

/// The variant for a problem whose pages are rows, and whose V is K's first columns; or unsupported, saying why there
/// is none or why it does not pay.
Result<forward::Config> rows_config(const AttentionProblem& problem, const gpu::DeviceShape& shape,
                                    const RowFormat& format, const gpu::Choice& choice = {});

/// The variant for latent rows of a cache in 8 bits, in pages of any size, whose V is K's first columns with the same
/// scales: if there is one, and one tile has all query rows that read them or the cache is too large to be converted.
std::optional<forward::Config> cache_rows_config(const AttentionProblem& problem, const gpu::DeviceShape& shape,
                                                 const gpu::Choice& choice = {});

/// The problem that this variant solves: that of a cache in 16 bits.
AttentionProblem with_rows_of_cache(AttentionProblem problem);

}  // namespace strobe::sm90
