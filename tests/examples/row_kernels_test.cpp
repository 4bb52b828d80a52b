// SPDX-License-Identifier: Apache-2.0
#include "row_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <numbers>
#include <random>
#include <vector>

namespace sentence_search {
namespace {

std::vector<float> normal_values(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, 2.0F);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

TEST(RowKernels, AddsTheBiasToEveryRow) {
  constexpr std::size_t kRows = 3;
  const auto bias = normal_values(kWidthMultiple, 1);
  const auto before = normal_values(kRows * kWidthMultiple, 2);
  auto values = before;
  add_bias({values.data(), kRows, kWidthMultiple}, bias.data());
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], before[i] + bias[i % kWidthMultiple]);
}

TEST(RowKernels, GeluIsWithinItsBound) {
  constexpr std::size_t kCount = kWidthMultiple * 1000;
  const std::vector<float> bias(kWidthMultiple, 0.0F);
  std::vector<float> inputs(kCount);
  for (std::size_t i = 0; i < kCount; ++i) inputs[i] = 24.0F * static_cast<float>(i) / kCount - 12.0F;
  auto values = inputs;
  add_bias_gelu({values.data(), kCount / kWidthMultiple, kWidthMultiple}, bias.data());
  for (std::size_t i = 0; i < kCount; ++i) {
    const double x = inputs[i];
    const double expected = 0.5 * x * (1.0 + std::erf(x / std::numbers::sqrt2));
    EXPECT_LE(std::abs(values[i] - expected), 2e-7 * (1.0 + std::abs(x))) << "gelu(" << x << ")";
  }
}

TEST(RowKernels, NormalizesTheSum) {
  constexpr std::size_t kRows = 5;
  constexpr std::size_t kWidth = 3 * kWidthMultiple;
  const auto bias = normal_values(kWidth, 1);
  const auto residual = normal_values(kRows * kWidth, 2);
  const auto weight = normal_values(kWidth, 3);
  const auto shift = normal_values(kWidth, 4);
  const auto before = normal_values(kRows * kWidth, 5);
  auto values = before;
  constexpr float kEpsilon = 1e-5F;
  add_and_normalize({values.data(), kRows, kWidth}, bias.data(), residual.data(),
                    {weight.data(), shift.data(), kEpsilon});

  for (std::size_t row = 0; row < kRows; ++row) {
    std::vector<double> sums(kWidth);
    double mean = 0.0;
    for (std::size_t i = 0; i < kWidth; ++i) {
      sums[i] = double{before[row * kWidth + i]} + bias[i] + residual[row * kWidth + i];
      mean += sums[i] / kWidth;
    }
    double variance = 0.0;
    for (const double sum : sums) variance += (sum - mean) * (sum - mean) / kWidth;
    for (std::size_t i = 0; i < kWidth; ++i) {
      const double expected = (sums[i] - mean) / std::sqrt(variance + kEpsilon) * weight[i] + shift[i];
      // Some twenty roundings of values below 64, scaled down by a deviation of more than 2.
      EXPECT_NEAR(values[row * kWidth + i], expected, 20 * 0x1p-24 * 32.0) << "row " << row << ", column " << i;
    }
  }
}

}  // namespace
}  // namespace sentence_search
