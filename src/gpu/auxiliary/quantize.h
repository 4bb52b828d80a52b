// SPDX-License-Identifier: Apache-2.0
// The quantiser of GPU engines.
#pragma once

#include <string_view>

#include "runtime/device.h"
#include "strobe/quantize.h"

namespace strobe::gpu {

/// Enqueues a checked quantisation on the stream; waits for nothing. The elements and scales are those of the CPU
/// engine, bit for bit. unsupported for head_dims that are no multiples of 8 or above 256, on the engine that `engine`
/// names. `architecture`: what NVRTC compiles for, "sm_90a".
Status quantize(const QuantizeArguments& arguments, const QuantizeOptions& options, const Execution& execution,
                const runtime::CudaDevice& device, std::string_view engine, std::string_view architecture);

}  // namespace strobe::gpu
