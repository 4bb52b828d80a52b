// SPDX-License-Identifier: Apache-2.0
// dK and dV of sparse attention from their sums in float32.
#pragma once

#include "kernels/auxiliary/sparse_backward/params.h"

namespace strobe::auxiliary {

/// Grid: a warp for each row of each key head.
template <Element element>
__global__ void __launch_bounds__(kSparseStoreThreads) sparse_store(const __grid_constant__ SparseStoreParams params) {
  const long long number =
      static_cast<long long>(blockIdx.x) * (kSparseStoreThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (number >= params.rows) return;
  const int row = params.by_heads.quotient(static_cast<int>(number));
  const int head = params.by_heads.remainder(static_cast<int>(number));
  const int page = params.by_page_rows.quotient(row);
  const int in_page = params.by_page_rows.remainder(row);
  const float* const sums = params.sums + number * params.columns;
  unsigned short* const dk = params.dk.row(page, in_page, head);
  for (int column = lane; column < params.head_dim; column += 32) {
    set_element<element>(dk, column, sums[column]);
  }
  if (params.dv.data == nullptr) return;
  unsigned short* const dv = params.dv.row(page, in_page, head);
  for (int column = lane; column < params.head_dim_v; column += 32) {
    set_element<element>(dv, column, sums[params.first_v_column + column]);
  }
}

}  // namespace strobe::auxiliary
