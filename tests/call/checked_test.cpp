// SPDX-License-Identifier: Apache-2.0
#include "call/checked.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace strobe::test {
namespace {

constexpr std::int64_t kLargestSize = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kTwoTo32 = std::int64_t{1} << 32;

static_assert((Checked(3) * 5 + 2).value() == 17);
static_assert(ceil_div(Checked(17), 5).value() == 4 && (Checked(17) / 5).value() == 3);
static_assert(round_up(Checked(17), 8).value() == 24 && round_up(Checked(0), 8).value() == 0);
static_assert(Checked(kLargestSize).fits() && Checked(kLargestSize).at_most(kLargestSize));

TEST(Checked, ProductsAndSumsThatDoNotFitAreKnown) {
  EXPECT_FALSE((Checked(kTwoTo32) * kTwoTo32).fits());
  EXPECT_FALSE((Checked(kTwoTo32) * (kTwoTo32 / 2)).fits());
  EXPECT_TRUE((Checked(kTwoTo32) * (kTwoTo32 / 4)).fits());
  EXPECT_FALSE((Checked(kLargestSize) + 1).fits());
  EXPECT_FALSE(round_up(Checked(kLargestSize), 8).fits());
  EXPECT_EQ(ceil_div(Checked(kLargestSize), 8).value(), kLargestSize / 8 + 1);
}

TEST(Checked, WhatDoesNotFitStaysSo) {
  const Checked overflown = Checked(kTwoTo32) * kTwoTo32;
  for (const Checked& size : {overflown * 0, 0 * overflown, overflown + 1, overflown / 16, ceil_div(overflown, 16)}) {
    EXPECT_FALSE(size.fits());
    EXPECT_FALSE(size.at_most(kLargestSize));
    EXPECT_EQ(size.value_if_fits(), std::nullopt);
    EXPECT_THROW(static_cast<void>(size.value()), SizeOverflow);
  }
}

TEST(Checked, NumbersThatAreNoSizesDoNotFit) {
  EXPECT_FALSE(Checked(-1).fits());
  EXPECT_FALSE((Checked(-1) * -1).fits());
  EXPECT_FALSE((Checked(-1) + 2).fits());
  EXPECT_FALSE(Checked(std::numeric_limits<std::uint64_t>::max()).fits());
}

TEST(Checked, NarrowsOnlyWhatFits) {
  EXPECT_EQ(Checked(2147483647).value<std::int32_t>(), 2147483647);
  EXPECT_THROW(static_cast<void>(Checked(std::int64_t{1} << 31).value<std::int32_t>()), SizeOverflow);
  EXPECT_EQ(Checked(kLargestSize).value<std::size_t>(), static_cast<std::size_t>(kLargestSize));
}

}  // namespace
}  // namespace strobe::test
