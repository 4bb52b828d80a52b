// SPDX-License-Identifier: Apache-2.0
// What the kernels take, whatever the pass.
#pragma once

#include <cstdint>

#include "call/problem.h"
#include "gpu/plan/device.h"
#include "strobe/status.h"

namespace strobe::sm80 {

using gpu::DeviceShape;

/// dtypes, head_dims, options and lengths; the Status names the first that the kernels lack, and who has it.
Status check_supported(const AttentionProblem& problem);

/// The smallest compiled size that holds `head_dim`, which is at most 256.
int compiled_head_dim(std::int64_t head_dim);

/// Of wide heads, either of which may be narrow: multiples of 128.
inline constexpr int kWideColumns = 128;
int compiled_wide_head_dim(std::int64_t head_dim);

}  // namespace strobe::sm80
