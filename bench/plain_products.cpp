// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <vector>

#include "products.h"

namespace strobe::bench {
namespace {

// Terms that are added up before they join the result, as in a BLAS: with one sum of all terms, rounding errors of long
// ones would be larger than standard attention's are.
constexpr std::int64_t kBlock = 256;

/// The elements of a transposed factor [rows, columns], row by row.
std::vector<float> untransposed(const Factor& factor, std::int64_t rows, std::int64_t columns) {
  std::vector<float> elements(static_cast<std::size_t>(rows * columns));
  for (std::int64_t column = 0; column < columns; ++column) {
    const float* const from = factor.data + column * factor.stride;
    for (std::int64_t row = 0; row < rows; ++row)
      elements[static_cast<std::size_t>(row * columns + column)] = from[row];
  }
  return elements;
}

/// sums [n] += terms [count] * b [count, n], four rows of b at a time, so that sums is read and written less often.
void add_rows(const float* terms, std::int64_t count, const float* b, std::int64_t stride, std::int64_t n,
              float* sums) {
  std::int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const float* const rows = b + i * stride;
    for (std::int64_t j = 0; j < n; ++j) {
      sums[j] += (terms[i] * rows[j] + terms[i + 1] * rows[j + stride]) +
                 (terms[i + 2] * rows[j + 2 * stride] + terms[i + 3] * rows[j + 3 * stride]);
    }
  }
  for (; i < count; ++i) {
    for (std::int64_t j = 0; j < n; ++j) sums[j] += terms[i] * b[i * stride + j];
  }
}

}  // namespace

void multiply(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const Factor& a, const Factor& b, float beta,
              float* c) {
  const std::vector<float> copy = b.transposed ? untransposed(b, k, n) : std::vector<float>();
  const float* const rows_b = b.transposed ? copy.data() : b.data;
  const std::int64_t stride_b = b.transposed ? n : b.stride;
  std::vector<float> terms(static_cast<std::size_t>(std::min(k, kBlock)));
  std::vector<float> sums(static_cast<std::size_t>(n));
  for (std::int64_t row = 0; row < m; ++row, c += n) {
    for (std::int64_t j = 0; j < n; ++j) c[j] = beta == 0.0F ? 0.0F : beta * c[j];
    for (std::int64_t begin = 0; begin < k; begin += kBlock) {
      const std::int64_t count = std::min(kBlock, k - begin);
      for (std::int64_t i = 0; i < count; ++i) {
        terms[static_cast<std::size_t>(i)] =
            a.transposed ? a.data[(begin + i) * a.stride + row] : a.data[row * a.stride + begin + i];
      }
      std::ranges::fill(sums, 0.0F);
      add_rows(terms.data(), count, rows_b + begin * stride_b, stride_b, n, sums.data());
      for (std::int64_t j = 0; j < n; ++j) c[j] += alpha * sums[static_cast<std::size_t>(j)];
    }
  }
}

bool products_are_fast() { return false; }

int set_product_threads(int /*threads*/) { return 1; }

}  // namespace strobe::bench
