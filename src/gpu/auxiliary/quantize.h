// SPDX-License-Identifier: Apache-2.0
// The quantiser on GPUs.
#pragma once

#include "runtime/device.h"
#include "strobe/quantize.h"

namespace strobe::gpu {

/// Enqueues a checked quantisation on the stream; waits for nothing. The elements and scales are those of the CPU
/// engine, bit for bit. unsupported for head_dims that are no multiples of 8 or above 256.
Status quantize(const QuantizeArguments& arguments, const QuantizeOptions& options, const Execution& execution,
                const runtime::CudaDevice& device);

}  // namespace strobe::gpu
