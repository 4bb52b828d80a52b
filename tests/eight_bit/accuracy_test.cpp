// SPDX-License-Identifier: Apache-2.0
// End to end: the error of 8-bit attention, quantisation included, on six distributions of inputs.
#include <gtest/gtest.h>

#include <string>

#include "accuracy.h"

namespace strobe::test {
namespace {

using reference::EightBitInputs;

constexpr std::int64_t kSeqlen = 4096;

/// As the paper: FlashAttention-3, section 3.3.
constexpr QuantizeOptions kPaper{.element = DType::float8_e4m3,
                                 .q_scales = ScaleUnit::block,
                                 .k_scales = ScaleUnit::block,
                                 .v_scales = ScaleUnit::block,
                                 .rotate_v = false,
                                 .center_k = false};

/// Scales per tensor and nothing else, as FlashAttention-3's code.
constexpr QuantizeOptions kShipped{.element = DType::float8_e4m3,
                                   .q_scales = ScaleUnit::tensor,
                                   .k_scales = ScaleUnit::tensor,
                                   .v_scales = ScaleUnit::tensor,
                                   .rotate_qk = false,
                                   .rotate_v = false,
                                   .center_k = false};

// What the paper reports is 9.1e-3 for its scheme, and FlashAttention-3's code has 1.94e-2.
TEST(EightBitAccuracy, Outliers) {
  Accuracy accuracy(EightBitInputs::outliers, 16, kSeqlen);
  EXPECT_LE(accuracy.rmse(kPaper), 8.7e-3);
  EXPECT_LE(accuracy.rmse({}), 2.4e-3);
  EXPECT_LE(accuracy.lse_rmse(), 1e-2);
}

class EightBitAccuracyOn : public testing::TestWithParam<EightBitInputs> {};

TEST_P(EightBitAccuracyOn, Int8HasAFractionOfTheError) {
  Accuracy accuracy(GetParam(), 2, kSeqlen);
  const double int8 = accuracy.rmse({});
  const double shipped = accuracy.rmse(kShipped);
  EXPECT_LE(int8, 0.4 * shipped) << int8 << " and " << shipped;
}

INSTANTIATE_TEST_SUITE_P(Inputs, EightBitAccuracyOn, testing::ValuesIn(reference::kEightBitInputs), inputs_name);

// The last 64 queries of a context eight times as long, which the weights of most keys are an eighth of in.
TEST(EightBitAccuracy, LongContextsCostNoMore) {
  constexpr std::int64_t kLong = 8 * kSeqlen;
  constexpr std::int64_t kQueries = 64;
  for (const EightBitInputs inputs : {EightBitInputs::normal, EightBitInputs::peaked}) {
    Accuracy near(inputs, 1, kSeqlen, kQueries);
    Accuracy far(inputs, 1, kLong, kQueries);
    EXPECT_LE(far.relative_rmse({}), 1.1 * near.relative_rmse({})) << reference::name_of(inputs);
    EXPECT_LE(far.relative_rmse(kPaper), 1.5 * near.relative_rmse(kPaper)) << reference::name_of(inputs);
  }
}

// Each query's own key among many, with a weight of 0.7: found where O is more of its value than of all others'.
TEST(EightBitAccuracy, FindsNeedles) {
  const reference::Needles needles = reference::make_needles(16384, 64, 1, kHeadDim, 3);
  const auto found = [&](const QuantizeOptions* options) { return Accuracy(needles, 1).needles_found(options); };
  const QuantizeOptions int8;
  EXPECT_EQ(found(nullptr), 64);
  EXPECT_EQ(found(&int8), 64);
  EXPECT_EQ(found(&kPaper), 64);
}

}  // namespace
}  // namespace strobe::test
