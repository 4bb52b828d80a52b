// SPDX-License-Identifier: Apache-2.0
#include "gpu/read_back.h"

namespace strobe::gpu {

Status read_back(const runtime::CudaDevice& device, void* to, const void* from, std::size_t bytes,
                 const Execution& execution) {
  const runtime::Driver& driver = *device.driver;
  auto* const stream = static_cast<runtime::CUstream>(execution.stream);
  const runtime::ContextScope context(device);
  if (!context.status().ok()) return context.status();
  runtime::CUstreamCaptureStatus capture = runtime::CU_STREAM_CAPTURE_STATUS_NONE;
  Status status =
      driver.check(driver.StreamGetCaptureInfo(stream, &capture, nullptr, nullptr, nullptr, nullptr, nullptr),
                   "asking for a capture");
  if (!status.ok()) return status;
  if (capture != runtime::CU_STREAM_CAPTURE_STATUS_NONE) {
    return {StatusCode::unsupported,
            "STROBE_CHECK_VALUES=1 reads lengths and page tables back from the GPU, which a stream under capture "
            "cannot: capture without it"};
  }
  status = driver.check(driver.StreamSynchronize(stream), "waiting for the stream");
  if (!status.ok()) return status;
  return driver.check(driver.MemcpyDtoH(to, reinterpret_cast<runtime::CUdeviceptr>(from), bytes),
                      "copying to the host");
}

}  // namespace strobe::gpu
