// SPDX-License-Identifier: Apache-2.0
// What the tests on a real GPU share; each is skipped where there is none of compute capability 9.0 and later.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "runtime/device.h"
#include "runtime/kernel.h"
#include "test_kernels.h"

namespace strobe::test {

/// Device memory that holds `count` elements.
template <class T>
class DeviceArray {
 public:
  DeviceArray(const runtime::CudaDevice& device, std::size_t count) : device_(device), count_(count) {
    const runtime::ContextScope context(device_);
    EXPECT_EQ(device_.driver->MemAlloc(&address_, count * sizeof(T)), runtime::CUDA_SUCCESS);
    upload(std::vector<T>(count));
  }
  ~DeviceArray() {
    const runtime::ContextScope context(device_);
    device_.driver->MemFree(address_);
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  void upload(const std::vector<T>& values) {
    const runtime::ContextScope context(device_);
    EXPECT_EQ(device_.driver->MemcpyHtoD(address_, values.data(), count_ * sizeof(T)), runtime::CUDA_SUCCESS);
  }

  /// Waits for all work of the device's context first.
  std::vector<T> download() const {
    const runtime::ContextScope context(device_);
    std::vector<T> values(count_);
    EXPECT_EQ(device_.driver->CtxSynchronize(), runtime::CUDA_SUCCESS);
    EXPECT_EQ(device_.driver->MemcpyDtoH(values.data(), address_, count_ * sizeof(T)), runtime::CUDA_SUCCESS);
    return values;
  }

  runtime::CUdeviceptr address() const { return address_; }

 private:
  const runtime::CudaDevice& device_;
  std::size_t count_;
  runtime::CUdeviceptr address_ = 0;
};

class Stream {
 public:
  explicit Stream(const runtime::CudaDevice& device) : device_(device) {
    const runtime::ContextScope context(device_);
    EXPECT_EQ(device_.driver->StreamCreate(&stream_, runtime::CU_STREAM_NON_BLOCKING), runtime::CUDA_SUCCESS);
  }
  ~Stream() { device_.driver->StreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  runtime::CUstream get() const { return stream_; }
  void synchronize() const { EXPECT_EQ(device_.driver->StreamSynchronize(stream_), runtime::CUDA_SUCCESS); }

 private:
  const runtime::CudaDevice& device_;
  runtime::CUstream stream_ = nullptr;
};

/// Gives device 0, and kernels compiled from `text` without any cache.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    const Result<const runtime::CudaDevice*> opened = runtime::cuda_device(0);
    if (!opened.ok()) GTEST_SKIP() << opened.status().message();
    if ((*opened)->compute_major != 9) GTEST_SKIP() << (*opened)->name << " is not of compute capability 9.0";
    if (!runtime::nvrtc().ok()) GTEST_SKIP() << runtime::nvrtc().status().message();
    device_ = *opened;
    context_ = std::make_unique<runtime::ContextScope>(*device_);
    ASSERT_TRUE(context_->status().ok()) << context_->status().message();
  }

  const runtime::CudaDevice& device() const { return *device_; }
  const runtime::Driver& driver() const { return *device_->driver; }

  /// The kernel that `expression` names in `text`. Stores live as long as the process, since loaded kernels do.
  Result<runtime::Kernel> load(const std::string& text, const std::string& expression, unsigned shared_bytes = 0) {
    using namespace runtime;
    const std::string& sources = *new std::string(test_sources(text));
    const KernelStore& store = *new KernelStore(*Archive::parse(sources), {}, DiskCache(), nvrtc);
    const Variant variant = {
        .name = expression, .include = "test/change.h", .expression = expression, .architecture = "sm_90a"};
    return load_kernel(store, variant, device(), shared_bytes);
  }

 private:
  const runtime::CudaDevice* device_ = nullptr;
  std::unique_ptr<runtime::ContextScope> context_;
};

}  // namespace strobe::test
