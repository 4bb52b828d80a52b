// SPDX-License-Identifier: Apache-2.0
// The forward on 8-bit operands against float64 on what the operands stand for.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attention/seeds.h"
#include "eight_bit/eight_bit_case.h"
#include "strobe/expression.h"

namespace strobe::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(EightBitForward, RandomCallsStayWithinTheBound) {
  for (const std::uint64_t seed : chosen_seeds(200)) {
    SCOPED_TRACE("STROBE_SEED=" + std::to_string(seed));
    EightBitCase c = random_eight_bit_case(seed);
    c.expect_matches_reference();
  }
}

TEST(EightBitForward, ThreadsDoNotChangeTheBits) {
  EightBitCase c;
  c.seqlen_q = 500;
  c.fill(5);
  ASSERT_TRUE(c.run().ok());
  const io::HostBytes one = c.o.bytes;
  c.threads = 4;
  ASSERT_TRUE(c.run().ok());
  EXPECT_EQ(one, c.o.bytes);
}

// Centring shifts every score of a row alike: O and LSE are those of the keys as they were.
TEST(EightBitForward, CentringIsPutRight) {
  for (const float softcap : {0.0F, 20.0F}) {
    EightBitCase c;
    c.sink = true;
    c.options.softcap = softcap;
    c.fill(9);
    for (float& x : floats(c.k)) x += 1.0F;
    ASSERT_TRUE(c.run().ok());
    const std::vector<float> centred(floats(c.lse).begin(), floats(c.lse).end());
    c.quantize.center_k = false;
    ASSERT_TRUE(c.run().ok());
    for (std::size_t i = 0; i < centred.size(); ++i) EXPECT_NEAR(centred[i], floats(c.lse)[i], 0.1F) << softcap;
  }
}

TEST(EightBitForward, TextsSeeTheKeysAsTheyWere) {
  for (const char* const text :
       {"score < 0 ? 0.5 * score : score", "0.5 * score", "20 * tanh(score / 20) - score / 4"}) {
    const auto function = ScoreFunction::parse(text);
    ASSERT_TRUE(function.ok());
    EightBitCase c;
    c.sink = true;
    c.fill(9);
    for (float& x : floats(c.k)) x += 1.0F;
    std::vector<float> lse[2], o[2];
    for (const bool centred : {false, true}) {
      c.quantize.center_k = centred;
      ASSERT_TRUE(c.prepare().ok());
      ForwardArguments arguments = c.arguments();
      arguments.modifiers.function = &*function;
      ASSERT_TRUE(forward(arguments, c.options).ok());
      lse[centred].assign(floats(c.lse).begin(), floats(c.lse).end());
      o[centred].assign(floats(c.o).begin(), floats(c.o).end());
    }
    for (std::size_t i = 0; i < lse[0].size(); ++i) EXPECT_NEAR(lse[1][i], lse[0][i], 0.1F) << text;
    for (std::size_t i = 0; i < o[0].size(); ++i) EXPECT_NEAR(o[1][i], o[0][i], 0.1F) << text;
  }
}

// A NaN or an infinity makes the rows that see it NaN, and no other.
TEST(EightBitForward, HiddenKeysLeaveNoTrace) {
  for (const DType element : {DType::int8, DType::float8_e4m3}) {
    for (const bool in_v : {false, true}) {
      EightBitCase c;
      c.seqlen_q = c.seqlen_k = 200;
      c.options.causal = CausalMask::bottom_right;
      c.quantize.element = element;
      c.fill(3);
      floats(in_v ? c.v : c.k)[150 * 64 + 9] = in_v ? kInfinity : kNaN;
      ASSERT_TRUE(c.run().ok());
      for (std::int64_t i = 0; i < 200; ++i) {
        for (std::int64_t x = 0; x < 2 * 64; ++x) {
          ASSERT_EQ(std::isnan(floats(c.o)[static_cast<std::size_t>(i * 128 + x)]), i >= 150) << i;
        }
      }
    }
  }
}

TEST(EightBitForward, QueriesThatAreNotFiniteSpoilTheirRowAlone) {
  EightBitCase c;
  c.fill(4);
  floats(c.q)[(20 * 2 + 1) * 64] = kNaN;
  ASSERT_TRUE(c.run().ok());
  for (std::int64_t row = 0; row < 140; ++row) {
    EXPECT_EQ(std::isnan(floats(c.o)[static_cast<std::size_t>(row * 64)]), row == 41);
  }
}

TEST(EightBitForward, RowsWithoutKeysAreZero) {
  EightBitCase c;
  c.seqlen_q = 100;
  c.seqlen_k = 40;
  c.options.causal = CausalMask::bottom_right;
  c.fill(6);
  ASSERT_TRUE(c.run().ok());
  for (std::int64_t i = 0; i < 60 * 2 * 64; ++i) EXPECT_EQ(floats(c.o)[static_cast<std::size_t>(i)], 0.0F);
  EXPECT_EQ(floats(c.lse)[59], -kInfinity);
  EXPECT_TRUE(std::isfinite(floats(c.lse)[60]));
}

// Keys that are not used may hold anything; queries that are not used give zeros.
TEST(EightBitForward, RowsThatAreNotUsedLeaveNoTrace) {
  for (const DType element : {DType::int8, DType::float8_e4m3}) {
    EightBitCase c;
    c.seqlen_q = 200;
    c.quantize.element = element;
    c.quantize.center_k = false;  // its mean is of all keys
    c.used_q = {150};
    c.used_k = {160};  // whose scales are not others'
    c.fill(11);
    ASSERT_TRUE(c.run().ok());
    const std::vector<float> first(floats(c.o).begin(), floats(c.o).end());
    for (std::size_t i = 160 * 64; i < 300 * 64; ++i) floats(c.k)[i] = floats(c.v)[i] = kNaN;
    ASSERT_TRUE(c.run().ok());
    for (std::size_t i = 0; i < first.size(); ++i) {
      ASSERT_EQ(floats(c.o)[i], first[i]) << i;
      if (i >= 150 * 128) {
        ASSERT_EQ(first[i], 0.0F) << i;
      }
    }
    EXPECT_EQ(floats(c.lse)[150], -kInfinity);
    EXPECT_TRUE(std::isfinite(floats(c.lse)[149]));
  }
}

// Keys whose values are zero weigh in the sum all the same.
TEST(EightBitForward, ZeroValuesKeepTheirWeight) {
  EightBitCase c;
  c.seqlen_k = 130;
  c.fill(8);
  for (std::int64_t i = 0; i < 100 * 64; ++i) floats(c.v)[static_cast<std::size_t>(i)] = 0.0F;
  c.expect_matches_reference();
}

}  // namespace
}  // namespace strobe::test
