// SPDX-License-Identifier: Apache-2.0
// A machine without an NVIDIA driver: everything that asks for one gets an error message, and nothing else happens.
#include "runtime/driver.h"

#include <gtest/gtest.h>

#include "runtime/device.h"

namespace strobe::runtime {
namespace {

TEST(WithoutDriver, EveryCallReturnsAnError) {
  if (driver().ok()) GTEST_SKIP() << "this machine has an NVIDIA driver";
  EXPECT_EQ(driver().status().code(), StatusCode::unsupported);
  EXPECT_NE(driver().status().message().find("NVIDIA driver"), std::string::npos) << driver().status().message();
  EXPECT_EQ(cuda_device_count().status().message(), driver().status().message());
  EXPECT_EQ(cuda_device(0).status().message(), driver().status().message());
}

}  // namespace
}  // namespace strobe::runtime
