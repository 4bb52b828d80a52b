// SPDX-License-Identifier: Apache-2.0
// A GPU that the tested family is for: whatever needs one is skipped where there is none.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "gpu/stream.h"
#include "tested_engine.h"

namespace strobe::test {

/// Gives device 0 and a stream.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    const Result<const runtime::CudaDevice*> opened = runtime::cuda_device(0);
    if (!opened.ok()) GTEST_SKIP() << opened.status().message();
    if (!serves(**opened))
      GTEST_SKIP() << "the " << name_of(tested_family()) << " kernels are not for " << (*opened)->name;
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

/// What every family must do. A suite is instantiated as INSTANTIATE_TEST_SUITE_P(, Suite, kFamilies, family_name): its
/// tests are Suite.Test/sm90 and Suite.Test/sm80.
class FamilyTest : public GpuTest, public testing::WithParamInterface<Family> {
 protected:
  void SetUp() override {
    tested_family() = GetParam();
    GpuTest::SetUp();
  }
  void TearDown() override { tested_family() = Family::sm90; }
};

inline const auto kFamilies = testing::Values(Family::sm90, Family::sm80);

inline std::string family_name(const testing::TestParamInfo<Family>& info) { return name_of(info.param); }

}  // namespace strobe::test
