// SPDX-License-Identifier: Apache-2.0
// End to end: the error of 8-bit attention, quantisation included, on six distributions of inputs.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "io/quantized.h"
#include "reference/eight_bit_inputs.h"

namespace strobe::test {
namespace {

using reference::EightBitInputs;

constexpr std::int64_t kSeqlen = 4096;
constexpr std::int64_t kHeadDim = 128;

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

class Accuracy {
 public:
  Accuracy(EightBitInputs inputs, std::int64_t heads)
      : heads_(heads), tensors_(reference::make_eight_bit_inputs(inputs, kSeqlen, heads, kHeadDim, 1)) {
    // float32 attention is off by less than 1e-6, a thousandth of what is measured.
    const ForwardArguments exact{.q = q(), .k = k(), .v = v(), .o = io::view(exact_), .lse = io::view(exact_lse_)};
    EXPECT_TRUE(forward(exact).ok());
  }

  /// Root mean square error of O.
  double rmse(const QuantizeOptions& options) {
    const Result<io::Quantized> operands = io::quantized(q(), k(), v(), options);
    EXPECT_TRUE(operands.ok());
    io::HostTensor o = exact_;
    io::HostTensor lse = exact_lse_;
    ForwardArguments arguments = operands->arguments();
    arguments.o = io::view(o);
    arguments.lse = io::view(lse);
    EXPECT_TRUE(forward(arguments).ok());
    lse_rmse_ = rmse(lse, exact_lse_);
    return rmse(o, exact_);
  }

  double lse_rmse() const { return lse_rmse_; }

 private:
  static double rmse(const io::HostTensor& actual, const io::HostTensor& expected) {
    const auto* a = reinterpret_cast<const float*>(actual.bytes.data());
    const auto* e = reinterpret_cast<const float*>(expected.bytes.data());
    double sum = 0.0;
    const std::size_t count = io::element_count(actual);
    for (std::size_t i = 0; i < count; ++i) {
      const double error = static_cast<double>(a[i]) - static_cast<double>(e[i]);
      sum += error * error;
    }
    return std::sqrt(sum / static_cast<double>(count));
  }

  ConstTensorView q() const { return tensor(tensors_.q.data(), {1, kSeqlen, heads_, kHeadDim}); }
  ConstTensorView k() const { return tensor(tensors_.k.data(), {1, kSeqlen, heads_, kHeadDim}); }
  ConstTensorView v() const { return tensor(tensors_.v.data(), {1, kSeqlen, heads_, kHeadDim}); }

  std::int64_t heads_;
  reference::EightBitTensors tensors_;
  io::HostTensor exact_ = io::make_tensor(DType::float32, {1, kSeqlen, heads_, kHeadDim});
  io::HostTensor exact_lse_ = io::make_tensor(DType::float32, {1, heads_, kSeqlen});
  double lse_rmse_ = 0.0;
};

// What the paper reports is 9.1e-3 for its scheme, and FlashAttention-3's code has 1.94e-2.
TEST(EightBitAccuracy, Outliers) {
  Accuracy accuracy(EightBitInputs::outliers, 16);
  EXPECT_LE(accuracy.rmse(kPaper), 8.7e-3);
  EXPECT_LE(accuracy.rmse({}), 2.4e-3);
  EXPECT_LE(accuracy.lse_rmse(), 1e-2);
}

class EightBitAccuracyOn : public testing::TestWithParam<EightBitInputs> {};

TEST_P(EightBitAccuracyOn, Int8HasAFractionOfTheError) {
  Accuracy accuracy(GetParam(), 2);
  const double int8 = accuracy.rmse({});
  const double shipped = accuracy.rmse(kShipped);
  EXPECT_LE(int8, 0.4 * shipped) << int8 << " and " << shipped;
}

std::string inputs_name(const testing::TestParamInfo<EightBitInputs>& info) {
  std::string name = reference::name_of(info.param);
  std::erase(name, ' ');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Inputs, EightBitAccuracyOn, testing::ValuesIn(reference::kEightBitInputs), inputs_name);

}  // namespace
}  // namespace strobe::test
