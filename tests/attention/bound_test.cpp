// The error bound: never exceeded by plain float32 arithmetic, exceeded as soon as something is wrong.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cpu/reference/reference.h"
#include "cpu/reference/rounding.h"
#include "matches_reference.h"

namespace strobe::test {
namespace {

enum class Defect {
  none,
  score_in_bfloat16,        // S kept in 16 bits
  probability_in_bfloat16,  // P kept in 16 bits, where the model says float32
  missing_key,              // the last visible key left out
  unscaled_accumulator,     // O not rescaled when the maximum grows
  forgotten_correction,     // D left out of dS
  scale_off_by_a_thousandth,
};

constexpr std::int64_t kSeqlen = 150;
constexpr std::int64_t kHeadDim = 48;

AttentionCase one_head(DType dtype, Values values) {
  AttentionCase attention{.dtype = dtype, .head_dim = kHeadDim, .head_dim_v = kHeadDim, .values = values, .seed = 7};
  attention.q.rows = kSeqlen;
  attention.k.rows = kSeqlen;
  attention.options.causal = CausalMask::bottom_right;
  return attention;
}

// Causal attention of one head in float32, one key after another, in FlashAttention-2's online form.
class PlainFloat32 {
 public:
  PlainFloat32(CaseTensors& tensors, Defect defect) : tensors_(tensors), defect_(defect) {}

  void forward() {
    for (std::int64_t query = 0; query < kSeqlen; ++query) forward_row(query);
  }

  void backward() {
    std::vector<float> dk(kSeqlen * kHeadDim, 0.0F);
    std::vector<float> dv(kSeqlen * kHeadDim, 0.0F);
    for (std::int64_t query = 0; query < kSeqlen; ++query) backward_row(query, dk, dv);
    for (std::int64_t index = 0; index < kSeqlen * kHeadDim; ++index) {
      tensors_.dk.set(index, dk[index]);
      tensors_.dv.set(index, dv[index]);
    }
  }

 private:
  static float at(const GuardedTensor& tensor, std::int64_t row, std::int64_t column) {
    return static_cast<float>(tensor.get(row * kHeadDim + column));
  }

  static float dot(const GuardedTensor& left, std::int64_t row_left, const GuardedTensor& right,
                   std::int64_t row_right) {
    float sum = 0.0F;
    for (std::int64_t column = 0; column < kHeadDim; ++column) {
      sum += at(left, row_left, column) * at(right, row_right, column);
    }
    return sum;
  }

  float scale() const {
    const float exact = 1.0F / std::sqrt(static_cast<float>(kHeadDim));
    return defect_ == Defect::scale_off_by_a_thousandth ? exact * 1.001F : exact;
  }

  float score(std::int64_t query, std::int64_t key) const {
    const float value = scale() * dot(tensors_.q, query, tensors_.k, key);
    return defect_ == Defect::score_in_bfloat16 ? to_float(to_bfloat16(value)) : value;
  }

  float stored_probability(float p) const {
    return defect_ == Defect::probability_in_bfloat16 ? to_float(to_bfloat16(p)) : p;
  }

  std::int64_t visible_end(std::int64_t query) const {
    return defect_ == Defect::missing_key && query > 0 ? query : query + 1;
  }

  void forward_row(std::int64_t query) {
    std::vector<float> sums(kHeadDim, 0.0F);
    float maximum = -std::numeric_limits<float>::infinity();
    float row_sum = 0.0F;
    for (std::int64_t key = 0; key < visible_end(query); ++key) {
      const float s = score(query, key);
      const float larger = std::fmax(maximum, s);
      const float rescale = defect_ == Defect::unscaled_accumulator ? 1.0F : std::exp(maximum - larger);
      const float p = std::exp(s - larger);
      row_sum = row_sum * std::exp(maximum - larger) + p;
      for (std::int64_t column = 0; column < kHeadDim; ++column) {
        sums[column] = sums[column] * rescale + stored_probability(p) * at(tensors_.v, key, column);
      }
      maximum = larger;
    }
    for (std::int64_t column = 0; column < kHeadDim; ++column) {
      tensors_.o.set(query * kHeadDim + column, sums[column] / row_sum);
    }
    tensors_.lse.set(query, maximum + std::log(row_sum));
  }

  void backward_row(std::int64_t query, std::vector<float>& dk, std::vector<float>& dv) {
    const float correction =
        defect_ == Defect::forgotten_correction
            ? 0.0F
            : dot(tensors_.d_o, query, tensors_.o, query) - static_cast<float>(tensors_.d_lse.get(query));
    std::vector<float> dq(kHeadDim, 0.0F);
    for (std::int64_t key = 0; key < visible_end(query); ++key) {
      const float p = std::exp(score(query, key) - static_cast<float>(tensors_.lse.get(query)));
      const float d_s = p * (dot(tensors_.d_o, query, tensors_.v, key) - correction);
      for (std::int64_t column = 0; column < kHeadDim; ++column) {
        dq[column] += scale() * d_s * at(tensors_.k, key, column);
        dk[key * kHeadDim + column] += scale() * d_s * at(tensors_.q, query, column);
        dv[key * kHeadDim + column] += stored_probability(p) * at(tensors_.d_o, query, column);
      }
    }
    for (std::int64_t column = 0; column < kHeadDim; ++column) tensors_.dq.set(query * kHeadDim + column, dq[column]);
  }

  CaseTensors& tensors_;
  Defect defect_;
};

struct Ratios {
  double o, lse, dq, dk, dv;
  double forward() const { return std::fmax(o, lse); }
  double gradients() const { return std::fmax(dq, std::fmax(dk, dv)); }
};

Ratios worst_ratios(const AttentionCase& attention, Defect defect, reference::ArithmeticModel model = {}) {
  model.block_n = 1;  // PlainFloat32 may replace the maximum at every key
  CaseTensors tensors(attention);
  PlainFloat32 plain(tensors, defect);
  plain.forward();
  plain.backward();
  const reference::ForwardResult forward = reference::forward(tensors.forward_arguments(), attention.options, model);
  const reference::BackwardResult backward =
      reference::backward(tensors.backward_arguments(), attention.options, model);
  return {.o = reference::worst_element(tensors.o.view(), forward.o).ratio,
          .lse = reference::worst_element(tensors.lse.view(), forward.lse).ratio,
          .dq = reference::worst_element(tensors.dq.view(), backward.dq).ratio,
          .dk = reference::worst_element(tensors.dk.view(), backward.dk).ratio,
          .dv = reference::worst_element(tensors.dv.view(), backward.dv).ratio};
}

TEST(Bound, HoldsForPlainFloat32OnEveryDistribution) {
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    for (const Values values : {Values::normal, Values::outliers, Values::small, Values::sharp}) {
      const Ratios ratios = worst_ratios(one_head(dtype, values), Defect::none);
      EXPECT_LE(ratios.forward(), 1.0) << name_of(dtype);
      EXPECT_LE(ratios.gradients(), 1.0) << name_of(dtype);
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

TEST(Bound, AllowsProbabilitiesInTheInputDtypeWhereTheModelSaysSo) {
  const reference::ArithmeticModel model{.probabilities = DType::bfloat16};
  const Ratios ratios = worst_ratios(one_head(DType::bfloat16, Values::normal), Defect::probability_in_bfloat16, model);
  EXPECT_LE(ratios.forward(), 1.0);
  EXPECT_LE(ratios.gradients(), 1.0);
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
