// SPDX-License-Identifier: Apache-2.0
// A forward on host tensors, run on copies of them in device memory.
#pragma once

#include <cstddef>
#include <vector>

#include "gpu/device_memory.h"
#include "strobe/attention.h"

namespace strobe::gpu {

/// Every tensor of a call copied to a device, strides and gaps included: what is not written there comes back as it
/// was.
class MirroredForward {
 public:
  /// Copies each tensor of `host`, from its first element to its last.
  static Result<MirroredForward> make(const ForwardArguments& host, const runtime::CudaDevice& device);

  /// The same call on the device's tensors.
  const ForwardArguments& arguments() const { return arguments_; }

  /// Waits for the device and copies the outputs back to where they came from, gaps included.
  Status fetch_outputs() const;

 private:
  struct Copy {
    DeviceMemory memory;
    std::byte* host;  // the first byte that was copied; written for outputs alone
    bool output;
  };

  Status mirror(ConstTensorView& view, const runtime::CudaDevice& device);
  Status mirror(TensorView& view, const runtime::CudaDevice& device);

  ForwardArguments arguments_;
  std::vector<Copy> copies_;
};

}  // namespace strobe::gpu
