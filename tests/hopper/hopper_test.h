// SPDX-License-Identifier: Apache-2.0
// A GPU that the tested engine serves: whatever needs one is skipped where there is none.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "gpu/stream.h"
#include "tested_engine.h"

namespace strobe::test {

/// Gives device 0 and a stream.
class HopperTest : public testing::Test {
 protected:
  void SetUp() override {
    const Result<const runtime::CudaDevice*> opened = runtime::cuda_device(0);
    if (!opened.ok()) GTEST_SKIP() << opened.status().message();
    if (!serves(**opened)) GTEST_SKIP() << "the " << tested_kernels() << " kernels are not for " << (*opened)->name;
    device_ = *opened;
    Result<gpu::Stream> stream = gpu::Stream::create(*device_);
    ASSERT_TRUE(stream.ok()) << stream.status().message();
    stream_ = std::make_unique<gpu::Stream>(std::move(*stream));
  }

  const runtime::CudaDevice& device() const { return *device_; }
  const gpu::Stream& stream() const { return *stream_; }

 private:
  const runtime::CudaDevice* device_ = nullptr;
  std::unique_ptr<gpu::Stream> stream_;
};

}  // namespace strobe::test
