// SPDX-License-Identifier: Apache-2.0
// Rows of a tile: query positions with packed_heads heads each, counted from the sequence's first.
#pragma once

#include "kernels/scheduler/tiling.h"
#include "kernels/sequence/visible_keys.h"

namespace strobe {

/// The key on the diagonal of a row.
template <Tiling T>
__device__ __forceinline__ int center_of(const sequence::Sequence& sequence, int row) {
  return row / T.packed_heads + sequence.diagonal;
}

/// The keys that a row sees. `first_key`: the position of the sequence's first one.
template <Tiling T>
__device__ __forceinline__ sequence::KeyRange keys_of(const VisibilityParams& params,
                                                      const sequence::Sequence& sequence, int row, int first_key) {
  return sequence::visible_keys<T.rule>(params, sequence, center_of<T>(sequence, row), first_key);
}

/// Blocks of keys that some of the rows [row_first, row_first + rows) see.
template <Tiling T>
__device__ __forceinline__ sequence::KeyBlocks key_blocks(const VisibilityParams& params,
                                                          const sequence::Sequence& sequence, int row_first, int rows,
                                                          int first_key) {
  const int row_last = min(row_first + rows, sequence.q.used * T.packed_heads) - 1;
  if (row_last < row_first) {
    return {0, 0};
  }
  return sequence::key_blocks<T.block_n>(keys_of<T>(params, sequence, row_first, first_key),
                                         keys_of<T>(params, sequence, row_last, first_key));
}

/// Tiles of one head of a sequence: those that have a row in use.
template <Tiling T>
__device__ __forceinline__ int tiles_of(const sequence::SequenceRows& q) {
  return (q.used * T.packed_heads + T.block_m - 1) / T.block_m;
}

}  // namespace strobe
