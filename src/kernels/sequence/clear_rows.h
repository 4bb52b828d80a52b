// SPDX-License-Identifier: Apache-2.0
// Zeros in rows of a tensor.
#pragma once

#include "kernels/sequence/rows.h"

namespace strobe {

/// Rows [first, end) of one head, `columns` of 16 bits each, by a group of `threads` of which this thread is number
/// `thread`.
__device__ __forceinline__ void clear_rows(const Rows& rows, int columns, int batch, int head, int first, int end,
                                           int thread, int threads) {
  const int chunks = columns / 8;  // of 16 bytes
  for (long long i = thread; i < static_cast<long long>(max(end - first, 0)) * chunks; i += threads) {
    *reinterpret_cast<uint4*>(rows.row(batch, first + i / chunks, head) + i % chunks * 8) = make_uint4(0, 0, 0, 0);
  }
}

}  // namespace strobe
