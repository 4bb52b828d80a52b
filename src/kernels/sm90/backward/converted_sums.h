// SPDX-License-Identifier: Apache-2.0
// float32 sums that lie in the order of the accumulators' registers, scaled and converted, for dQ of the joint design
// and for dK and dV of items that share keys.
#pragma once

#include "kernels/sm90/backward/config.h"
#include "kernels/sm90/backward/joint/query_rows.h"

namespace strobe::sm90::backward {

/// Two rows of `columns` columns, 32 at a time: sum(i) gives four numbers of both, columns 8 i and on of this thread's
/// pair; store(first, r, words) takes row r of the columns from 8 `first` on. False if a value of a masked variant is
/// not finite.
template <Config C, int columns, int unrolled, typename Sum, typename Store>
__device__ __forceinline__ bool convert_sums(float factor, const Sum& sum, const Store& store) {
  float zero = 0.0F;
#pragma unroll unrolled
  for (int first = 0; first < columns / 8; first += 4) {
    uint32_t words[kRowsPerThread][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 x = sum(first + j);
      if constexpr (is_masked(C.rule)) {
        zero = not_finite(x.x, x.y, x.z, x.w, zero);
      }
      words[0][j] = pack<C.rule.element>(x.x * factor, x.y * factor);
      words[1][j] = pack<C.rule.element>(x.z * factor, x.w * factor);
    }
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      store(first, r, words[r]);
    }
  }
  return zero == 0.0F;
}

}  // namespace strobe::sm90::backward
