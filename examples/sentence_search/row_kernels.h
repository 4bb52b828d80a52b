// SPDX-License-Identifier: Apache-2.0
// The encoder's arithmetic between the matrix products: row by row, on vectors of whatever the machine has.
#pragma once

#include <cstddef>

namespace sentence_search {

/// Widths that every instruction set's vectors divide.
inline constexpr std::size_t kWidthMultiple = 64;

/// `count` rows of `width` floats, one after another; width is a multiple of kWidthMultiple.
struct Rows {
  float* data;
  std::size_t count;
  std::size_t width;
};

/// rows += bias
void add_bias(Rows rows, const float* bias);

/// rows = gelu(rows + bias), gelu(x) = x (1 + erf(x / sqrt 2)) / 2, within 2e-7 (1 + |x|).
/// Source: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).
void add_bias_gelu(Rows rows, const float* bias);

struct LayerNorm {
  const float* weight;
  const float* bias;
  float epsilon;
};

/// rows = norm(rows + bias + residual), where norm gives each row mean 0 and variance 1, then scales and shifts it.
/// Source: Ba, Kiros and Hinton, "Layer Normalization" (2016).
void add_and_normalize(Rows rows, const float* bias, const float* residual, const LayerNorm& norm);

}  // namespace sentence_search
