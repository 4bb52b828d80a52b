// SPDX-License-Identifier: Apache-2.0
// Forwards of many query rows, of wide heads, or in row-invariant calls, over K and V stored in 8 bits: a kernel
// converts the cache to 16 bits, and the forward reads what it wrote. Which do so, each family says.
#pragma once

#include "call/checked.h"
#include "call/problem.h"

namespace strobe::gpu {

/// Whether a cache is converted before the forward where it need not be. Its keys are then read and written once more,
/// which takes less time than a conversion in every tile of query rows where there are many of them.
bool gains_by_conversion(const AttentionProblem& problem);

/// Whether a cache can be converted before the forward, for kernels that do not convert it themselves.
bool can_convert_cache(const AttentionProblem& problem);

/// Whether it could be, if its copy were not too large.
bool is_too_large_to_convert(const AttentionProblem& problem);

/// The problem that the forward solves where its cache was converted.
AttentionProblem with_converted_cache(AttentionProblem problem);

/// What K or V of so many columns takes as 16-bit rows.
Checked converted_bytes(const AttentionProblem& problem, std::int64_t columns);

}  // namespace strobe::gpu
