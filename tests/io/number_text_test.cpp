// SPDX-License-Identifier: Apache-2.0
#include "io/number_text.h"

#include <gtest/gtest.h>

namespace strobe::io {
namespace {

TEST(NumberText, GroupsDigitsByThree) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(1234567), "1,234,567");
}

TEST(NumberText, ChoosesTheUnit) {
  EXPECT_EQ(binary_units(1 << 19), "0.5 MiB");
  EXPECT_EQ(binary_units((1LL << 30) - (1 << 20)), "1023.0 MiB");
  EXPECT_EQ(binary_units(5LL << 28), "1.25 GiB");
}

}  // namespace
}  // namespace strobe::io
