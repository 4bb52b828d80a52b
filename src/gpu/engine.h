// SPDX-License-Identifier: Apache-2.0
// What the engines of all GPUs have in common: where a device is found, and the calls whose kernels are the same.
#pragma once

#include <cstddef>
#include <string>

#include "engine/engine.h"
#include "runtime/device.h"

namespace strobe::gpu {

class GpuEngine : public engine::Implementation {
 public:
  DeviceType device_type() const final { return DeviceType::cuda; }
  Status serves(const Device& device) const final;
  Status merge(const MergeArguments& arguments, const Execution& execution) const final;
  Status append(const AppendArguments& arguments, const Execution& execution) const final;
  Status read_back(const Device& device, void* to, const void* from, std::size_t bytes,
                   const Execution& execution) const final;

 private:
  /// Whether it has kernels for this GPU; the Status says why not.
  virtual Status serves_gpu(const runtime::CudaDevice& device) const = 0;

  /// What the shared kernels are compiled for: sm_90a.
  virtual std::string architecture(const runtime::CudaDevice& device) const = 0;
};

}  // namespace strobe::gpu
