// SPDX-License-Identifier: Apache-2.0
// Memory of one GPU, owned.
#pragma once

#include <cstddef>
#include <utility>

#include "runtime/device.h"
#include "strobe/status.h"

namespace strobe::gpu {

/// A block of device memory, freed with the object. A copy waits for all work of the device's
/// context and is done when it returns.
class DeviceMemory {
 public:
  /// out_of_memory where the device has no room; 0 bytes give a null pointer.
  static Result<DeviceMemory> allocate(const runtime::CudaDevice& device, std::size_t bytes);

  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept
      : device_(other.device_), address_(std::exchange(other.address_, 0)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory() { free(); }

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  std::size_t bytes() const { return bytes_; }

  /// Copies the whole block from and to host memory.
  Status upload(const void* from);
  Status download(void* to) const;

 private:
  DeviceMemory(const runtime::CudaDevice& device, runtime::CUdeviceptr address, std::size_t bytes)
      : device_(&device), address_(address), bytes_(bytes) {}
  void free();

  const runtime::CudaDevice* device_ = nullptr;
  runtime::CUdeviceptr address_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace strobe::gpu
