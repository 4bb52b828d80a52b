// SPDX-License-Identifier: Apache-2.0
#include "gpu/device_memory.h"

#include <fmt/format.h>

namespace strobe::gpu {

using runtime::ContextScope;
using runtime::CudaDevice;

Result<DeviceMemory> DeviceMemory::allocate(const CudaDevice& device, std::size_t bytes) {
  if (bytes == 0) return DeviceMemory();
  const ContextScope context(device);
  if (!context.status().ok()) return context.status();
  runtime::CUdeviceptr address = 0;
  const std::string attempted = fmt::format("allocating {} bytes on {}", bytes, device.name);
  Status status = device.driver->check(device.driver->MemAlloc(&address, bytes), attempted.c_str());
  if (!status.ok()) return status;
  return DeviceMemory(device, address, bytes);
}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  if (this == &other) return *this;
  free();
  device_ = other.device_;
  address_ = std::exchange(other.address_, 0);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void DeviceMemory::free() {
  if (address_ == 0) return;
  const ContextScope context(*device_);
  device_->driver->MemFree(address_);
}

Status DeviceMemory::upload(const void* from) {
  if (bytes_ == 0) return {};
  const ContextScope context(*device_);
  Status status = device_->driver->check(device_->driver->MemcpyHtoD(address_, from, bytes_), "copying to the device");
  if (!status.ok()) return status;
  // The copy may still be on its way when the call returns, and streams that do not wait for the default one would
  // overtake it.
  return device_->driver->check(device_->driver->CtxSynchronize(), "waiting for the device");
}

Status DeviceMemory::download(void* to) const {
  if (bytes_ == 0) return {};
  const ContextScope context(*device_);
  Status status = device_->driver->check(device_->driver->CtxSynchronize(), "waiting for the device");
  if (!status.ok()) return status;
  return device_->driver->check(device_->driver->MemcpyDtoH(to, address_, bytes_), "copying from the device");
}

}  // namespace strobe::gpu
