// SPDX-License-Identifier: Apache-2.0
// The append of GPU engines.
#pragma once

#include <string_view>

#include "runtime/device.h"
#include "strobe/cache.h"

namespace strobe::gpu {

/// Enqueues a checked append on the stream; waits for nothing. `architecture`: what NVRTC compiles for, "sm_90a".
Status append(const AppendArguments& arguments, const Execution& execution, const runtime::CudaDevice& device,
              std::string_view architecture);

}  // namespace strobe::gpu
