// SPDX-License-Identifier: Apache-2.0
// The merge of GPU engines.
#pragma once

#include <string_view>

#include "runtime/device.h"
#include "strobe/merge.h"

namespace strobe::gpu {

/// Enqueues a checked merge on the stream; waits for nothing. `architecture`: what NVRTC compiles for, "sm_90a".
Status merge(const MergeArguments& arguments, const Execution& execution, const runtime::CudaDevice& device,
             std::string_view architecture);

}  // namespace strobe::gpu
