// SPDX-License-Identifier: Apache-2.0
// The merge on GPUs.
#pragma once

#include "runtime/device.h"
#include "strobe/merge.h"

namespace strobe::gpu {

/// Enqueues a checked merge on the stream; waits for nothing.
Status merge(const MergeArguments& arguments, const Execution& execution, const runtime::CudaDevice& device);

}  // namespace strobe::gpu
