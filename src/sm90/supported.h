// SPDX-License-Identifier: Apache-2.0
// What this engine does not take, whatever its kernels.
#pragma once

#include "gpu/plan/supported.h"

namespace strobe::sm90 {

using gpu::kMaxInt, gpu::unsupported;

/// dtypes, head_dims, options and lengths; the Status names the first that this engine lacks, and who has it.
Status check_supported(const AttentionProblem& problem);

}  // namespace strobe::sm90
