// SPDX-License-Identifier: Apache-2.0
#include "strobe/float8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace strobe {
namespace {

/// By the definition of the format.
double value_of(unsigned bits) {
  const unsigned exponent = bits >> 3U & 15U;
  const unsigned mantissa = bits & 7U;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8.0 + mantissa, static_cast<int>(exponent) - 10);
  return (bits & 0x80U) != 0 ? -magnitude : magnitude;
}

float widened(unsigned bits) { return to_float(float8_e4m3{static_cast<std::uint8_t>(bits)}); }

TEST(Float8, WidensEveryValue) {
  for (unsigned bits = 0; bits < 256; ++bits) {
    if ((bits & 0x7FU) == 0x7FU) {
      EXPECT_TRUE(std::isnan(widened(bits)));
    } else {
      EXPECT_EQ(widened(bits), value_of(bits)) << bits;
    }
  }
}

TEST(Float8, NarrowsToTheNearestEven) {
  for (unsigned bits = 0; bits < 0x7EU; ++bits) {
    const float low = widened(bits);
    const float high = widened(bits + 1);
    const float middle = (low + high) / 2.0F;
    for (const float sign : {1.0F, -1.0F}) {
      const unsigned negative = sign < 0.0F ? 0x80U : 0U;
      EXPECT_EQ(to_float8_e4m3(sign * low).bits, bits | negative);
      EXPECT_EQ(to_float8_e4m3(sign * std::nextafter(middle, 0.0F)).bits, bits | negative);
      EXPECT_EQ(to_float8_e4m3(sign * middle).bits, (bits + bits % 2) | negative);
      EXPECT_EQ(to_float8_e4m3(sign * std::nextafter(middle, 1e9F)).bits, (bits + 1) | negative);
    }
  }
}

TEST(Float8, SaturatesAndKeepsNaN) {
  for (const float large : {448.0F, 460.0F, 1e30F, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(to_float(to_float8_e4m3(large)), 448.0F);
    EXPECT_EQ(to_float(to_float8_e4m3(-large)), -448.0F);
  }
  EXPECT_TRUE(std::isnan(to_float(to_float8_e4m3(std::numeric_limits<float>::quiet_NaN()))));
}

}  // namespace
}  // namespace strobe
