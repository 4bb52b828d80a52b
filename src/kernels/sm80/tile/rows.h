// SPDX-License-Identifier: Apache-2.0
// Accumulators on their way to rows of a tensor: through a tile in shared memory, so that whole rows are stored.
#pragma once

#include "kernels/score/fragment.h"
#include "kernels/sequence/rows.h"
#include "kernels/sm80/tile/copy.h"
#include "kernels/sm80/tile/cta.h"

namespace strobe::sm80 {

/// stage_fragment() of float32.
template <typename Tile, bool check, int registers>
__device__ __forceinline__ bool stage_wide_fragment(unsigned char* tile, int first_row, int first_pair,
                                                    const float (&x)[registers], float factor) {
  constexpr int kPairsOfPanel = 2;  // of sixteen columns, as first_pair counts
  float zero = 0.0F;                // NaN if a value is not finite
#pragma unroll
  for (int j = 0; j < registers / score::kWideRegisters; ++j) {
    const int chunk = 2 * static_cast<int>(threadIdx.x % 4) + j % 2;
    const int panel = first_pair / kPairsOfPanel + j / 2;
#pragma unroll
    for (int r = 0; r < score::kRowsPerThread; ++r) {
      const auto value = [&](int i) { return x[score::wide_register(j, r, i)] * factor; };
      const float4 four = make_float4(value(0), value(1), value(2), value(3));
      if constexpr (check) {
        zero = __fmaf_rn(four.x, 0.0F, __fmaf_rn(four.y, 0.0F, zero));
        zero = __fmaf_rn(four.z, 0.0F, __fmaf_rn(four.w, 0.0F, zero));
      }
      const int at = Tile::offset(first_row + score::fragment_row(r), chunk) + panel * Tile::kPanelBytes;
      *reinterpret_cast<float4*>(tile + at) = four;
    }
  }
  return zero == 0.0F;
}

/// Sixteen rows times `factor` to `tile`, from row first_row and the sixteen columns number first_pair on. False if
/// `check` and this thread had a value that is not finite.
template <Element element, typename Tile, bool check, int registers>
__device__ __forceinline__ bool stage_fragment(unsigned char* tile, int first_row, int first_pair,
                                               const float (&x)[registers], float factor) {
  if constexpr (element == Element::fp32) {
    return stage_wide_fragment<Tile, check>(tile, first_row, first_pair, x, factor);
  } else {
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
