// SPDX-License-Identifier: Apache-2.0
#include <cblas.h>

#include <algorithm>

#include "products.h"

namespace strobe::bench {

void multiply(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const Factor& a, const Factor& b, float beta,
              float* c) {
  if (m == 0 || n == 0) return;
  const auto leading = [](std::int64_t stride) { return static_cast<blasint>(std::max<std::int64_t>(stride, 1)); };
  const auto transpose = [](const Factor& factor) { return factor.transposed ? CblasTrans : CblasNoTrans; };
  cblas_sgemm(CblasRowMajor, transpose(a), transpose(b), static_cast<blasint>(m), static_cast<blasint>(n),
              static_cast<blasint>(k), alpha, a.data, leading(a.stride), b.data, leading(b.stride), beta, c,
              static_cast<blasint>(n));
}

bool products_are_fast() { return true; }

int set_product_threads(int threads) {
  const int before = openblas_get_num_threads();
  openblas_set_num_threads(threads);
  return before;
}

}  // namespace strobe::bench
