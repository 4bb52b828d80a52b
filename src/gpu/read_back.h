// SPDX-License-Identifier: Apache-2.0
// Device memory that the host reads, for checks that are asked for alone.
#pragma once

#include <cstddef>

#include "runtime/device.h"
#include "strobe/attention.h"

namespace strobe::gpu {

/// Copies `bytes` to host memory once what is queued on execution.stream is done, and waits for it. Fails while the
/// stream is captured.
Status read_back(const runtime::CudaDevice& device, void* to, const void* from, std::size_t bytes,
                 const Execution& execution);

}  // namespace strobe::gpu
