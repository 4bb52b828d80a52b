// SPDX-License-Identifier: Apache-2.0
// What the kernels take, whatever the pass.
#pragma once

#include "gpu/plan/supported.h"

namespace strobe::sm90 {

using gpu::kMaxInt, gpu::unsupported;

/// dtypes, head_dims, options and lengths; the Status names the first that the kernels lack, and who has it.
Status check_supported(const AttentionProblem& problem);

}  // namespace strobe::sm90
