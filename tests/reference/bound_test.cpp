// SPDX-License-Identifier: Apache-2.0
// The error bound: never exceeded by plain float32 arithmetic, exceeded as soon as something is wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "matches_reference.h"
#include "plain_float32.h"
#include "reference/bound/reference.h"
#include "reference/bound/rounding.h"

namespace strobe::test {
namespace {

struct Ratios {
  double o, lse, dq, dk, dv, d_bias, d_sink;
  double forward() const { return std::fmax(o, lse); }
  double gradients() const { return std::max({dq, dk, dv, d_bias, d_sink}); }
};

Ratios worst_ratios(const AttentionCase& attention, Defect defect, reference::ArithmeticModel model = {}) {
  model.block_n = 1;  // PlainFloat32 may replace the maximum at every key
  CaseTensors tensors(attention);
  PlainFloat32 plain(tensors, attention, defect);
  plain.forward();
  plain.backward();
  const reference::ForwardResult forward = reference::forward(tensors.forward_arguments(), attention.options, model);
  const reference::BackwardResult backward =
      reference::backward(tensors.backward_arguments(), attention.options, model);
  return {.o = reference::worst_element(tensors.o.view(), forward.o).ratio,
          .lse = reference::worst_element(tensors.lse.view(), forward.lse).ratio,
          .dq = reference::worst_element(tensors.dq.view(), backward.dq).ratio,
          .dk = reference::worst_element(tensors.dk.view(), backward.dk).ratio,
          .dv = reference::worst_element(tensors.dv.view(), backward.dv).ratio,
          .d_bias = reference::worst_element(tensors.d_bias.view(), backward.d_bias).ratio,
          .d_sink = reference::worst_element(tensors.d_sink.view(), backward.d_sink).ratio};
}

TEST(Bound, HoldsForPlainFloat32OnEveryDistribution) {
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    for (const Values values : {Values::normal, Values::outliers, Values::small, Values::sharp}) {
      for (const AttentionCase& attention : {one_head(dtype, values), modified_head(dtype, values)}) {
        const Ratios ratios = worst_ratios(attention, Defect::none);
        EXPECT_LE(ratios.forward(), 1.0) << describe(attention);
        EXPECT_LE(ratios.gradients(), 1.0) << describe(attention);
      }
    }
  }
}

TEST(Bound, IsReachedBySixteenBitResults) {
  // In 16 bits the rounding of the result dominates, and its worst case is met among a few thousand elements.
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    const Ratios ratios = worst_ratios(one_head(dtype, Values::normal), Defect::none);
    EXPECT_GT(ratios.o, 0.8) << name_of(dtype);
    EXPECT_GT(ratios.dv, 0.5) << name_of(dtype);
  }
}

TEST(Bound, IsExceededByWhatIsWrong) {
  const AttentionCase attention = one_head(DType::float32, Values::normal);
  for (const Defect defect : {Defect::score_in_bfloat16, Defect::probability_in_bfloat16, Defect::missing_key,
                              Defect::unscaled_accumulator, Defect::scale_off_by_a_thousandth}) {
    EXPECT_GT(worst_ratios(attention, defect).o, 1.0) << static_cast<int>(defect);
  }
  for (const Defect defect : {Defect::score_in_bfloat16, Defect::missing_key, Defect::forgotten_correction,
                              Defect::scale_off_by_a_thousandth}) {
    EXPECT_GT(worst_ratios(attention, defect).dq, 1.0) << static_cast<int>(defect);
    EXPECT_GT(worst_ratios(attention, defect).dk, 1.0) << static_cast<int>(defect);
  }
  EXPECT_GT(worst_ratios(attention, Defect::probability_in_bfloat16).dv, 1.0);
}

TEST(Bound, IsExceededByModifiersThatAreWrong) {
  const AttentionCase attention = modified_head(DType::float32, Values::normal);
  for (const Defect defect : {Defect::distance_off_by_one, Defect::bias_in_bfloat16, Defect::sink_without_rescale,
                              Defect::dropout_without_scale}) {
    const Ratios ratios = worst_ratios(attention, defect);
    EXPECT_GT(ratios.o, 1.0) << static_cast<int>(defect);
    EXPECT_GT(ratios.dq, 1.0) << static_cast<int>(defect);
    EXPECT_GT(ratios.d_bias, 1.0) << static_cast<int>(defect);
  }
  const Ratios uncorrected = worst_ratios(attention, Defect::dropout_before_correction);
  EXPECT_GT(uncorrected.d_bias, 1.0);
  EXPECT_GT(uncorrected.dk, 1.0);
  EXPECT_GT(worst_ratios(attention, Defect::forgotten_correction).d_sink, 1.0);
  EXPECT_GT(worst_ratios(attention, Defect::sink_without_rescale).lse, 1.0);
}

TEST(Bound, AllowsProbabilitiesInTheInputDtypeWhereTheModelSaysSo) {
  const reference::ArithmeticModel model{.probabilities = DType::bfloat16};
  const Ratios ratios = worst_ratios(one_head(DType::bfloat16, Values::normal), Defect::probability_in_bfloat16, model);
  EXPECT_LE(ratios.forward(), 1.0);
  EXPECT_LE(ratios.gradients(), 1.0);
}

TEST(Bound, AllowsFloat16OnTheWayToTheGradientsWhereTheModelSaysSo) {
  const AttentionCase attention = one_head(DType::bfloat16, Values::sharp);
  EXPECT_GT(worst_ratios(attention, Defect::probability_in_float16).gradients(), 1.0);
  const reference::ArithmeticModel model{.passed_probabilities = DType::float16, .passed_scale = 0x1p12};
  EXPECT_LE(worst_ratios(attention, Defect::probability_in_float16, model).gradients(), 1.0);
}

TEST(Bound, IsInfiniteWhereAFloat16ResultMayOverflow) {
  AttentionCase attention{.dtype = DType::float16, .head_dim = 1, .head_dim_v = 1, .q = {.rows = 1}, .k = {.rows = 1}};
  CaseTensors tensors(attention);
  tensors.v.set(0, 60000.0);
  EXPECT_TRUE(std::isfinite(reference::forward(tensors.forward_arguments()).o.bound[0]));
  tensors.v.set(0, 65504.0);
  EXPECT_TRUE(std::isfinite(reference::forward(tensors.forward_arguments()).o.bound[0]));
  const reference::Rounding half = reference::rounding_to(DType::float16);
  EXPECT_TRUE(std::isinf(half.stored_error(65519.0, 2.0)));
}

// The constants are those of the conversions that the library uses.
TEST(Rounding, RelativeErrorIsHalfAUnitInTheLastPlace) {
  Random random(1);
  double worst_bfloat16 = 0.0;
  double worst_float16 = 0.0;
  for (int sample = 0; sample < 100000; ++sample) {
    const float value = static_cast<float>(std::exp2(random.uniform() * 20.0 - 10.0));
    worst_bfloat16 = std::fmax(worst_bfloat16, std::fabs(to_float(to_bfloat16(value)) - value) / value);
    worst_float16 = std::fmax(worst_float16, std::fabs(to_float(to_float16(value)) - value) / value);
  }
  const double bfloat16_bound = reference::rounding_to(DType::bfloat16).relative;
  const double float16_bound = reference::rounding_to(DType::float16).relative;
  EXPECT_LE(worst_bfloat16, bfloat16_bound);
  EXPECT_GT(worst_bfloat16, 0.98 * bfloat16_bound);
  EXPECT_LE(worst_float16, float16_bound);
  EXPECT_GT(worst_float16, 0.98 * float16_bound);
}

TEST(Rounding, OverflowBeginsAtTheHalfwayPoint) {
  const double float16_limit = reference::rounding_to(DType::float16).overflow;
  EXPECT_TRUE(std::isinf(to_float(to_float16(static_cast<float>(float16_limit)))));
  EXPECT_FALSE(std::isinf(to_float(to_float16(std::nextafter(static_cast<float>(float16_limit), 0.0F)))));
  const double bfloat16_limit = reference::rounding_to(DType::bfloat16).overflow;
  EXPECT_TRUE(std::isinf(to_float(to_bfloat16(static_cast<float>(bfloat16_limit)))));
  EXPECT_FALSE(std::isinf(to_float(to_bfloat16(std::nextafter(static_cast<float>(bfloat16_limit), 0.0F)))));
}

TEST(Rounding, GammaGrowsWithTheRoundingsAndEndsInInfinity) {
  EXPECT_EQ(reference::gamma(0.0, 0x1p-24), 0.0);
  EXPECT_DOUBLE_EQ(reference::gamma(1.0, 0.25), 1.0 / 3.0);
  EXPECT_TRUE(std::isinf(reference::gamma(4.0, 0.25)));
}

TEST(Comparison, NaNAndInfinityMustBeWhereTheyAreExpected) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto ratio = [](float actual, double expected, double bound) {
    return reference::worst_element(tensor(&actual, {1}), {{expected}, {bound}}).ratio;
  };
  const auto inf32 = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ratio(1.5F, 1.0, 1.0), 0.5);
  EXPECT_EQ(ratio(1.0F, 1.0, 0.0), 0.0);
  EXPECT_EQ(ratio(1.5F, 1.0, 0.0), infinity);
  EXPECT_EQ(ratio(NAN, nan, 0.0), 0.0);
  EXPECT_EQ(ratio(NAN, 1.0, infinity), infinity);
  EXPECT_EQ(ratio(1.0F, nan, infinity), infinity);
  EXPECT_EQ(ratio(-inf32, -infinity, 0.0), 0.0);
  EXPECT_EQ(ratio(inf32, -infinity, 1.0), infinity);
  EXPECT_EQ(ratio(inf32, 1.0, infinity), 0.0);
}

}  // namespace
}  // namespace strobe::test
