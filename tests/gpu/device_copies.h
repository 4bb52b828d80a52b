// SPDX-License-Identifier: Apache-2.0
// A case's tensors on a GPU: copies of all their memory, gaps and guards included.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "attention/case_tensors.h"
#include "gpu/device_memory.h"

namespace strobe::test {

class DeviceCopies {
 public:
  explicit DeviceCopies(const runtime::CudaDevice& device) : device_(device) {}

  /// The tensor's copy, made from what it holds when it is first asked for; see CaseTensors::Place.
  TensorView place(const GuardedTensor& tensor) {
    TensorView view = tensor.view();
    if (!view.given()) return view;
    const gpu::DeviceMemory& memory = memory_of(tensor);
    view.device = {DeviceType::cuda, device_.index};
    view.data = memory.data() + (static_cast<std::byte*>(view.data) - tensor.memory().data());
    return view;
  }

  /// The copy of a tensor that lies in `bytes` at a multiple of 256, as the copy does.
  ConstTensorView place(const ConstTensorView& tensor, const std::vector<std::uint8_t>& bytes) {
    ConstTensorView view = tensor;
    const auto* const start = static_cast<const std::uint8_t*>(tensor.data);
    const std::size_t count = bytes.size() - static_cast<std::size_t>(start - bytes.data());
    gpu::DeviceMemory& memory = bytes_[&bytes];
    Result<gpu::DeviceMemory> allocated = gpu::DeviceMemory::allocate(device_, count);
    EXPECT_TRUE(allocated.ok()) << allocated.status().message();
    if (allocated.ok()) memory = std::move(*allocated);
    const Status status = memory.upload(start);
    EXPECT_TRUE(status.ok()) << status.message();
    view.device = {DeviceType::cuda, device_.index};
    view.data = memory.data();
    return view;
  }

  /// Copies to the device what the tensor holds now.
  void upload(const GuardedTensor& tensor) {
    const Status status = memory_of(tensor).upload(tensor.memory().data());
    EXPECT_TRUE(status.ok()) << status.message();
  }

  /// Waits for the device and copies what it wrote back into the tensors.
  void download(const std::vector<GuardedTensor*>& tensors) {
    for (GuardedTensor* const tensor : tensors) {
      const Status status = memory_of(*tensor).download(tensor->memory().data());
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }

 private:
  gpu::DeviceMemory& memory_of(const GuardedTensor& tensor) {
    gpu::DeviceMemory& memory = memories_[&tensor];
    if (memory.data() != nullptr) return memory;
    Result<gpu::DeviceMemory> allocated = gpu::DeviceMemory::allocate(device_, tensor.memory().size());
    EXPECT_TRUE(allocated.ok()) << allocated.status().message();
    if (allocated.ok()) memory = std::move(*allocated);
    upload(tensor);
    return memory;
  }

  const runtime::CudaDevice& device_;
  std::map<const GuardedTensor*, gpu::DeviceMemory> memories_;
  std::map<const std::vector<std::uint8_t>*, gpu::DeviceMemory> bytes_;
};

}  // namespace strobe::test
