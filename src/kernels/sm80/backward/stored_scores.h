// SPDX-License-Identifier: Apache-2.0
// Where scores lie in shared memory: operands of 16 bits and tiles of float32.
#pragma once

#include "kernels/score/fragment.h"
#include "kernels/sm80/backward/work.h"

namespace strobe::sm80::backward {

/// An operand to rows first_row on of a tile of scores, columns 16 * first_pair on.
template <typename Tile, int steps>
__device__ __forceinline__ void store_scores(unsigned char* tile, int first_row, int first_pair,
                                             const uint32_t (&x)[steps][4]) {
#pragma unroll
  for (int i = 0; i < 4 * steps; ++i) {
    const unsigned first = Tile::offset(first_row + score::fragment_row(i % kRowsPerThread), i / kRowsPerThread % 2);
    *reinterpret_cast<uint32_t*>(tile + Tile::pair_after(first, first_pair + i / 4) + threadIdx.x % 4 * 4) =
        x[i / 4][i % 4];
  }
}

/// Where a thread's scores of sixteen keys lie in a tile of float32 whose rows are queries. Of every eight keys the
/// even ones come first, so that key 2 t is where ldmatrix gives it to the lanes t of quads, who read rows 2 t and 2 t
/// + 1 of K for a product (tile/split_gemm.h).
template <typename Tile>
class QueryScores {
 public:
  __device__ __forceinline__ QueryScores(unsigned char* tile, int first_key)
      : chunk_(first_key % kKeysOfPanel / 4 + score::fragment_row(0) % 2),
        panel_(tile + first_key / kKeysOfPanel * Tile::kPanelBytes + score::fragment_row(0) / 2 * 4) {}

  /// Register i of an accumulator whose columns are queries from `first_query` on.
  __device__ __forceinline__ float& at(int first_query, int i) const {
    const int query = first_query + i / 4 * 8 + score::fragment_column() + i % 2;
    return *reinterpret_cast<float*>(panel_ + Tile::offset(query, chunk_ + i / 2 % kRowsPerThread * 2));
  }

 private:
  static constexpr int kKeysOfPanel = Tile::kPanelColumns / 2;
  const int chunk_;
  unsigned char* const panel_;
};

/// Scores of sixteen keys from first_key on to such a tile.
template <typename Tile, int count>
__device__ __forceinline__ void store_query_scores(unsigned char* tile, int first_key, int first_query,
                                                   const float (&x)[count]) {
  const QueryScores<Tile> scores(tile, first_key);
#pragma unroll
  for (int i = 0; i < count; ++i) {
    scores.at(first_query, i) = x[i];
  }
}

}  // namespace strobe::sm80::backward
