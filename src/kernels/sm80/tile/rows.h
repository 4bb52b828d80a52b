// SPDX-License-Identifier: Apache-2.0
// Accumulators on their way to rows of a tensor: through a tile in shared memory, so that whole rows are stored.
#pragma once

#include "kernels/score/fragment.h"
#include "kernels/sequence/rows.h"
#include "kernels/sm80/tile/copy.h"
#include "kernels/sm80/tile/cta.h"

namespace strobe::sm80 {

/// Sixteen rows times `factor` to `tile`, from row first_row and the pair of chunks first_pair on. False if `check` and
/// this thread had a value that is not finite.
template <Element element, typename Tile, bool check, int registers>
__device__ __forceinline__ bool stage_fragment(unsigned char* tile, int first_row, int first_pair,
                                               const float (&x)[registers], float factor) {
  float zero = 0.0F;  // NaN if a value is not finite
#pragma unroll
  for (int j = 0; j < registers / 4; ++j) {
#pragma unroll
    for (int r = 0; r < score::kRowsPerThread; ++r) {
      const float low = x[4 * j + 2 * r];
      const float high = x[4 * j + 2 * r + 1];
      if constexpr (check) {
        zero = __fmaf_rn(low, 0.0F, __fmaf_rn(high, 0.0F, zero));
      }
      const unsigned first = Tile::offset(first_row + score::fragment_row(r), j % 2);
      const unsigned at = Tile::pair_after(first, first_pair + j / 2) + threadIdx.x % 4 * 4;
      *reinterpret_cast<unsigned*>(tile + at) = pack<element>(low * factor, high * factor);
    }
  }
  return zero == 0.0F;
}

/// The CTA stores a tile: `owned` of its rows belong to the sequence, and those from `used` on are zeros.
template <typename Tile, int rows, int threads>
__device__ __forceinline__ void store_tile(const unsigned char* tile, unsigned short* first, long long row_stride,
                                           int used, int owned, int columns) {
  using Lane = CopyLane<Tile, threads>;
#pragma unroll 1
  for (int row = Lane::row(); row < min(rows, owned); row += Lane::kRowsAtATime) {
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
      const int column = panel * Tile::kPanelColumns + Lane::chunk() * kChunkElements;
      if (column < columns) {
        const unsigned at = Tile::offset(row, Lane::chunk()) + panel * Tile::kPanelBytes;
        *reinterpret_cast<uint4*>(first + row * row_stride + column) =
            row < used ? *reinterpret_cast<const uint4*>(tile + at) : make_uint4(0, 0, 0, 0);
      }
    }
  }
}

}  // namespace strobe::sm80
