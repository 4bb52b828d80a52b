// SPDX-License-Identifier: Apache-2.0
#include "row_kernels.h"

#include <cmath>

// Compiles the code below once for every instruction set and picks one at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "row_kernels.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sentence_search::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::ScalableTag<float>;
using Vector = hn::Vec<Tag>;
constexpr Tag kTag;

/// exp(-x^2) (a1 t + ... + a5 t^5) with t = 1 / (1 + p |x|): 1 - erf|x| within 1.5e-7.
/// Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26.
HWY_INLINE Vector complementary_erf(Vector magnitude) {
  const auto t = hn::Div(hn::Set(kTag, 1.0F), hn::MulAdd(hn::Set(kTag, 0.3275911F), magnitude, hn::Set(kTag, 1.0F)));
  auto sum = hn::MulAdd(hn::Set(kTag, 1.061405429F), t, hn::Set(kTag, -1.453152027F));
  sum = hn::MulAdd(sum, t, hn::Set(kTag, 1.421413741F));
  sum = hn::MulAdd(sum, t, hn::Set(kTag, -0.284496736F));
  sum = hn::MulAdd(sum, t, hn::Set(kTag, 0.254829592F));
  return hn::Mul(hn::Mul(sum, t), hn::Exp(kTag, hn::Neg(hn::Mul(magnitude, magnitude))));
}

/// max(x, 0) - |x| (1 - erf(|x| / sqrt 2)) / 2, which is the same and cancels nothing for negative x.
HWY_INLINE Vector gelu(Vector x) {
  const auto magnitude = hn::Abs(x);
  const auto tail = complementary_erf(hn::Mul(magnitude, hn::Set(kTag, 0.707106781F)));
  return hn::NegMulAdd(hn::Mul(magnitude, hn::Set(kTag, 0.5F)), tail, hn::Max(x, hn::Zero(kTag)));
}

void add_bias(Rows rows, const float* HWY_RESTRICT bias) {
  for (std::size_t row = 0; row < rows.count; ++row) {
    float* HWY_RESTRICT values = rows.data + row * rows.width;
    for (std::size_t i = 0; i < rows.width; i += hn::Lanes(kTag)) {
      hn::StoreU(hn::Add(hn::LoadU(kTag, values + i), hn::LoadU(kTag, bias + i)), kTag, values + i);
    }
  }
}

void add_bias_gelu(Rows rows, const float* HWY_RESTRICT bias) {
  for (std::size_t row = 0; row < rows.count; ++row) {
    float* HWY_RESTRICT values = rows.data + row * rows.width;
    for (std::size_t i = 0; i < rows.width; i += hn::Lanes(kTag)) {
      hn::StoreU(gelu(hn::Add(hn::LoadU(kTag, values + i), hn::LoadU(kTag, bias + i))), kTag, values + i);
    }
  }
}

void add_and_normalize(Rows rows, const float* HWY_RESTRICT bias, const float* residual, const LayerNorm& norm) {
  const std::size_t step = hn::Lanes(kTag);
  const auto width = static_cast<float>(rows.width);
  for (std::size_t row = 0; row < rows.count; ++row) {
    float* HWY_RESTRICT values = rows.data + row * rows.width;
    const float* HWY_RESTRICT added = residual + row * rows.width;
    auto sum = hn::Zero(kTag);
    for (std::size_t i = 0; i < rows.width; i += step) {
      const auto with_bias = hn::Add(hn::LoadU(kTag, values + i), hn::LoadU(kTag, bias + i));
      const auto value = hn::Add(with_bias, hn::LoadU(kTag, added + i));
      hn::StoreU(value, kTag, values + i);
      sum = hn::Add(sum, value);
    }
    const auto mean = hn::Set(kTag, hn::GetLane(hn::SumOfLanes(kTag, sum)) / width);
    auto squares = hn::Zero(kTag);
    for (std::size_t i = 0; i < rows.width; i += step) {
      const auto centered = hn::Sub(hn::LoadU(kTag, values + i), mean);
      squares = hn::MulAdd(centered, centered, squares);
    }
    const float variance = hn::GetLane(hn::SumOfLanes(kTag, squares)) / width;
    const auto scale = hn::Set(kTag, 1.0F / std::sqrt(variance + norm.epsilon));
    for (std::size_t i = 0; i < rows.width; i += step) {
      const auto centered = hn::Mul(hn::Sub(hn::LoadU(kTag, values + i), mean), scale);
      const auto shifted = hn::MulAdd(centered, hn::LoadU(kTag, norm.weight + i), hn::LoadU(kTag, norm.bias + i));
      hn::StoreU(shifted, kTag, values + i);
    }
  }
}

}  // namespace sentence_search::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sentence_search {

HWY_EXPORT(add_bias);
HWY_EXPORT(add_bias_gelu);
HWY_EXPORT(add_and_normalize);

void add_bias(Rows rows, const float* bias) { HWY_DYNAMIC_DISPATCH(add_bias)(rows, bias); }

void add_bias_gelu(Rows rows, const float* bias) { HWY_DYNAMIC_DISPATCH(add_bias_gelu)(rows, bias); }

void add_and_normalize(Rows rows, const float* bias, const float* residual, const LayerNorm& norm) {
  HWY_DYNAMIC_DISPATCH(add_and_normalize)(rows, bias, residual, norm);
}

}  // namespace sentence_search
#endif
