// SPDX-License-Identifier: Apache-2.0
// A Hopper GPU for tests: whatever needs one is skipped where there is none.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "gpu/stream.h"

namespace strobe::test {

/// Gives device 0 and a stream.
class HopperTest : public testing::Test {
 protected:
  void SetUp() override {
    const Result<const runtime::CudaDevice*> opened = runtime::cuda_device(0);
    if (!opened.ok()) GTEST_SKIP() << opened.status().message();
    if ((*opened)->compute_major != 9) GTEST_SKIP() << (*opened)->name << " is not of compute capability 9.0";
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
