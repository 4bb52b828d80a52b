// SPDX-License-Identifier: Apache-2.0
// Products of float32 matrices for standard attention: by OpenBLAS (openblas_products.cpp) or, where that would be a
// dependency too large to bring along, by plain loops (plain_products.cpp), whose results are as accurate. A program
// links one of them.
#pragma once

#include <cstdint>

namespace strobe::bench {

/// A row-major matrix, or its transpose.
struct Factor {
  const float* data = nullptr;
  std::int64_t stride = 0;  // of the rows in memory, in elements
  bool transposed = false;
};

/// c [m, n] = alpha * a [m, k] * b [k, n] + beta * c. c is contiguous, and written without being read where beta is 0.
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const Factor& a, const Factor& b, float beta,
              float* c);

/// Whether multiply() is as fast as a BLAS. Times of standard attention say nothing where it is not.
bool products_are_fast();

/// How many threads each multiply() takes from now on; returns how many it took. Plain loops always take their
/// caller's.
int set_product_threads(int threads);

}  // namespace strobe::bench
