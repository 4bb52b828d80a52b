// SPDX-License-Identifier: Apache-2.0
// Before the gradients of sparse attention: D = rowsum(dO O), less the gradient of LSE, and LSE in powers of two.
#pragma once

#include "kernels/auxiliary/sparse_backward/params.h"
#include "kernels/math/constants.h"

namespace strobe::auxiliary {

/// Grid: a warp for each head of each row.
template <Element element>
__global__ void __launch_bounds__(kSparsePrepareThreads)
    sparse_prepare(const __grid_constant__ SparsePrepareParams params) {
  const long long number =
      static_cast<long long>(blockIdx.x) * (kSparsePrepareThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto row = static_cast<int>(number / params.heads);
  const auto head = static_cast<int>(number - static_cast<long long>(row) * params.heads);
  if (row >= params.rows) return;
  float lse_log2 = -kMinusInfinity;
  float sum = 0.0F;
  if (row < params.queries) {
    const int entry = params.by_seqlen_q.quotient(row);
    const int position = params.by_seqlen_q.remainder(row);
    const float lse =
        params.lse[entry * params.lse_batch_stride + head * params.lse_head_stride + position * params.lse_row_stride];
    if (lse != kMinusInfinity) {  // else a query without keys
      lse_log2 = lse * kLog2E;
      const unsigned short* const o = params.o.row(entry, position, head);
      const unsigned short* const d_o = params.d_o.row(entry, position, head);
      for (int column = lane; column < params.head_dim_v; column += 32) {
        sum = __fmaf_rn(to_float<element>(d_o[column]), to_float<element>(o[column]), sum);
      }
      for (int distance = 16; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(0xffffffffU, sum, distance);
      }
      if (params.d_lse != nullptr) {
        sum -= params.d_lse[entry * params.d_lse_batch_stride + head * params.d_lse_head_stride +
                            position * params.d_lse_row_stride];
      }
    }
  }
  if (lane == 0) {
    const long long at = head * params.rows + row;
    params.lse_log2[at] = lse_log2;
    params.row_max[at] = 0.0F;
    params.d_sum[at] = sum;
  }
}

}  // namespace strobe::auxiliary
