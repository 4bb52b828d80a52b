// SPDX-License-Identifier: Apache-2.0
// Exact sums of float32 as kernels add them up, against sums in a wider fixed point of the test's own.
#include "kernels/math/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace strobe {
namespace {

class Sum {
 public:
  void add(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    if (!std::isfinite(x)) {
      flags_ |= exact_sum_flag(bits);
      return;
    }
    const ExactTerm term = exact_term(bits);
    digits_[term.first] += term.lower;
    if (term.upper != 0) digits_[term.first + 1] += term.upper;
  }

  float rounded() const {
    long long digits[kExactSumDigits];
    std::ranges::copy(digits_, digits);
    return std::bit_cast<float>(rounded_exact_sum(digits, flags_));
  }

 private:
  long long digits_[kExactSumDigits] = {};
  unsigned long long flags_ = 0;
};

float sum_of(const std::vector<float>& terms) {
  Sum sum;
  for (const float term : terms) sum.add(term);
  return sum.rounded();
}

float of_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(ExactSum, OfOneTermIsTheTerm) {
  std::mt19937 random(1);  // NOLINT(bugprone-random-generator-seed): the same every time
  for (int i = 0; i < 200000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    if (!std::isfinite(of_bits(bits)) || of_bits(bits) == 0.0F) continue;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(sum_of({of_bits(bits)})), bits);
  }
  EXPECT_EQ(sum_of({}), 0.0F);
  EXPECT_EQ(sum_of({-0.0F}), 0.0F);
}

// Of two terms whose exponents are close, float64 is exact.
TEST(ExactSum, IsRoundedOnce) {
  std::mt19937 random(2);  // NOLINT(bugprone-random-generator-seed): the same every time
  for (int i = 0; i < 200000; ++i) {
    const float x = of_bits(static_cast<std::uint32_t>(random()));
    if (!std::isfinite(x)) continue;
    const float y = std::ldexp(x, static_cast<int>(random() % 40) - 20) * (random() % 2 == 0 ? -1.25F : 0.75F);
    if (!std::isfinite(y)) continue;
    const auto expected = static_cast<float>(static_cast<double>(x) + static_cast<double>(y));
    EXPECT_EQ(sum_of({x, y}), expected) << x << " + " << y;
  }
}

TEST(ExactSum, RoundsHalvesToEven) {
  constexpr float kHalf = 0x1p-24F;  // of the last place of 1
  EXPECT_EQ(sum_of({1.0F, kHalf}), 1.0F);
  EXPECT_EQ(sum_of({1.0F, kHalf, 0x1p-149F}), 1.0F + 0x1p-23F);
  EXPECT_EQ(sum_of({1.0F, kHalf, -0x1p-149F}), 1.0F);
  EXPECT_EQ(sum_of({1.0F + 0x1p-23F, kHalf}), 1.0F + 0x1p-22F);
  EXPECT_EQ(sum_of({-1.0F, -kHalf, -0x1p-149F}), -1.0F - 0x1p-23F);
  EXPECT_EQ(sum_of({0x1.fffffep+0F, kHalf}), 2.0F);
}

TEST(ExactSum, KeepsWhatCancels) {
  constexpr float kMost = std::numeric_limits<float>::max();
  EXPECT_EQ(sum_of({kMost, 1.0F, kMost, -kMost, 0x1p-149F, -kMost}), 1.0F);
  EXPECT_EQ(sum_of({kMost, 0x1p-149F, -kMost}), 0x1p-149F);
  EXPECT_EQ(sum_of({-1.0F, 0x1p-149F}), -1.0F);
  EXPECT_EQ(sum_of({1.0F, -1.0F}), 0.0F);
  EXPECT_FALSE(std::signbit(sum_of({1.0F, -1.0F})));
}

TEST(ExactSum, DoesNotDependOnTheOrder) {
  std::mt19937 random(3);  // NOLINT(bugprone-random-generator-seed): the same every time
  for (int round = 0; round < 200; ++round) {
    std::vector<float> terms;
    long double whole = 0.0L;  // of 64 bits: exact where exponents span 30 and there are 2^10 terms
    for (int i = 0; i < 1000; ++i) {
      const float mantissa = static_cast<float>(static_cast<int>(random() % 0x1000000U) - 0x800000);
      terms.push_back(std::ldexp(mantissa, static_cast<int>(random() % 30) - 40));
      whole += static_cast<long double>(terms.back());
    }
    const float sum = sum_of(terms);
    if (std::numeric_limits<long double>::digits >= 64) {
      EXPECT_EQ(sum, static_cast<float>(whole));
    }
    std::ranges::shuffle(terms, random);
    EXPECT_EQ(sum_of(terms), sum);
  }
}

TEST(ExactSum, OverflowsToInfinity) {
  constexpr float kMost = std::numeric_limits<float>::max();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sum_of({kMost, kMost}), kInfinity);
  EXPECT_EQ(sum_of({-kMost, -kMost}), -kInfinity);
  EXPECT_EQ(sum_of(std::vector<float>(1000, -kMost)), -kInfinity);
  EXPECT_EQ(sum_of({kMost, 0x1p+102F}), kMost);      // less than half of the last place
  EXPECT_EQ(sum_of({kMost, 0x1p+103F}), kInfinity);  // half of it
}

TEST(ExactSum, CarriesWhatIsNoNumber) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sum_of({1.0F, kInfinity, -5.0F, kInfinity}), kInfinity);
  EXPECT_EQ(sum_of({1.0F, -kInfinity}), -kInfinity);
  EXPECT_TRUE(std::isnan(sum_of({kInfinity, -kInfinity})));
  EXPECT_TRUE(std::isnan(sum_of({1.0F, std::numeric_limits<float>::quiet_NaN(), kInfinity})));
}

TEST(ExactSum, TakesAsManyTermsAsItSays) {
  const ExactTerm largest = exact_term(std::bit_cast<std::uint32_t>(std::numeric_limits<float>::max()));
  EXPECT_EQ(largest.upper, 0);
  EXPECT_LT(largest.first, kExactSumDigits);
  constexpr long long kLargestDigit = (1LL << kExactSumDigitBits) - 1;
  EXPECT_GT(std::numeric_limits<long long>::max() / kMostTermsOfExactSum, kLargestDigit - 1);
}

TEST(ExactSum, WordsOfSumsLieApart) {
  constexpr long long kSums = 5 * kExactSumsOfGroup;
  std::vector<int> used(static_cast<std::size_t>(kSums * kExactSumWords));
  for (long long sum = 0; sum < kSums; ++sum) {
    for (int word = 0; word < kExactSumWords; ++word) ++used.at(static_cast<std::size_t>(exact_sum_word(sum, word)));
  }
  EXPECT_TRUE(std::ranges::all_of(used, [](int times) { return times == 1; }));
  EXPECT_EQ(whole_exact_sums(kSums), kSums);
  EXPECT_EQ(whole_exact_sums(kSums + 1), kSums + kExactSumsOfGroup);
}

}  // namespace
}  // namespace strobe
