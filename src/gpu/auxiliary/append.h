// SPDX-License-Identifier: Apache-2.0
// The append on GPUs.
#pragma once

#include "runtime/device.h"
#include "strobe/cache.h"

namespace strobe::gpu {

/// Enqueues a checked append on the stream; waits for nothing.
Status append(const AppendArguments& arguments, const Execution& execution, const runtime::CudaDevice& device);

}  // namespace strobe::gpu
