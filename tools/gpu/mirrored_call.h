// SPDX-License-Identifier: Apache-2.0
// A call on host tensors, run on copies of them in device memory.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "gpu/device_memory.h"
#include "strobe/attention.h"

namespace strobe::gpu {

/// Every tensor of a forward or a backward copied to a device, strides and gaps included: what is not written there
/// comes back as it was.
template <class Arguments>
class MirroredCall {
 public:
  /// Copies each tensor of `host`, from its first element to its last.
  static Result<MirroredCall> make(const Arguments& host, const runtime::CudaDevice& device);

  /// The same call on the device's tensors.
  const Arguments& arguments() const { return arguments_; }

  /// Waits for the device and copies the outputs back to where they came from, gaps included.
  Status fetch_outputs() const;

 private:
  struct Copy {
    DeviceMemory memory;
    std::byte* host = nullptr;  // the first byte that was copied; written for outputs alone
    bool output = false;
  };

  Status mirror(ConstTensorView& view, const runtime::CudaDevice& device);
  Status mirror(TensorView& view, const runtime::CudaDevice& device);

  /// `copies` of a call's list of tensors, and the list of them.
  template <class View>
  Status mirror(std::span<const View>& list, std::vector<View>& copies, const runtime::CudaDevice& device);

  Arguments arguments_;
  std::vector<ConstTensorView> captures_;  // what the spans of the arguments are of
  std::vector<TensorView> d_captures_;
  std::vector<Copy> copies_;
};

using MirroredForward = MirroredCall<ForwardArguments>;
using MirroredBackward = MirroredCall<BackwardArguments>;

}  // namespace strobe::gpu
