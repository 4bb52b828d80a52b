// SPDX-License-Identifier: Apache-2.0
// The products of one step, of one warp: 16 rows for each fragment, and each operand B that comes from shared
// memory serves all fragments.
#pragma once

#include "kernels/ptx/tensor_core.h"
#include "kernels/score/fragment.h"
#include "kernels/sm80/tile/swizzled.h"
#include "kernels/sm80/tile/warp.h"

namespace strobe::sm80 {

using cuda::std::uint32_t;

/// Where this lane reads 16 x 16 elements whose rows are the operand's own rows, as A: a first chunk of `Tile`.
template <typename Tile>
__device__ __forceinline__ uint32_t a_operand(uint32_t tile, int first_row) {
  const int lane = threadIdx.x % score::kThreadsPerWarp;
  return tile + Tile::offset(first_row + lane % 16, lane / 16);
}

/// Where this lane reads 16 keys of K, which are columns of B.
template <typename Tile>
__device__ __forceinline__ uint32_t k_operand(uint32_t tile) {
  const int lane = threadIdx.x % score::kThreadsPerWarp;
  return tile + Tile::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

/// Where this lane reads 16 x 16 elements whose columns are the rows of operand A, transposed.
template <typename Tile>
__device__ __forceinline__ uint32_t transposed_a_operand(uint32_t tile) {
  return k_operand<Tile>(tile);
}

/// Where this lane reads 16 keys of V, which are rows of B, transposed.
template <typename Tile>
__device__ __forceinline__ uint32_t v_operand(uint32_t tile) {
  const int lane = threadIdx.x % score::kThreadsPerWarp;
  return tile + Tile::offset(lane % 16, lane / 16);
}

/// D (+)= A B, of 16 columns of B.
template <Element element, bool accumulate>
__device__ __forceinline__ void multiply(float* d, const uint32_t (&a)[4], const uint32_t (&b)[4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float* part = d + 4 * half;
    if constexpr (accumulate) {
      ptx::mma_m16n8k16<element>(part, a, b[2 * half], b[2 * half + 1], part[0], part[1], part[2], part[3]);
    } else {
      ptx::mma_m16n8k16<element>(part, a, b[2 * half], b[2 * half + 1], 0.0F, 0.0F, 0.0F, 0.0F);
    }
  }
}

/// One step of S = Q K^T over 16 columns.
template <Element element, typename KTile, bool accumulate, int fragments, int registers>
__device__ __forceinline__ void score_step(float (&s)[fragments][registers], const uint32_t (&q)[fragments][4],
                                           uint32_t k, int step) {
  const uint32_t first = KTile::pair_after(k, step);
#pragma unroll
  for (int j = 0; j < registers / 8; ++j) {
    uint32_t b[4];
    ptx::ldmatrix_x4(b, first + j * 16 * KTile::kRowBytes);
#pragma unroll
    for (int f = 0; f < fragments; ++f) {
      multiply<element, accumulate>(&s[f][8 * j], q[f], b);
    }
  }
}

/// S = Q K^T. `queries(fragments' operands, step)` gives columns of Q; `k` as k_operand() has it.
template <Element element, typename KTile, int steps, int fragments, int registers, typename Queries>
__device__ __forceinline__ void gemm_scores(float (&s)[fragments][registers], const Queries& queries, uint32_t k) {
  uint32_t q[fragments][4];
  queries(q, 0);
  score_step<element, KTile, false>(s, q, k, 0);
#pragma unroll
  for (int step = 1; step < steps; ++step) {
    queries(q, step);
    score_step<element, KTile, true>(s, q, k, step);
  }
}

/// One step of a product over 16 rows of B, which are read transposed: `pair(j)` gives where this lane reads the
/// columns 16 j to 16 j + 15 of row 0.
template <Element element, int row_bytes, int fragments, int registers, typename Pair>
__device__ __forceinline__ void product_step(float (&d)[fragments][registers], const uint32_t (&a)[fragments][4],
                                             const Pair& pair, int step) {
#pragma unroll
  for (int j = 0; j < registers / 8; ++j) {
    uint32_t b[4];
    ptx::ldmatrix_x4_trans(b, pair(j) + step * kStep * row_bytes);
#pragma unroll
    for (int f = 0; f < fragments; ++f) {
      multiply<element, true>(&d[f][8 * j], a[f], b);
    }
  }
}

/// One step of O += P V over 16 keys; `v` as v_operand() has it.
template <Element element, typename VTile, int fragments, int registers>
__device__ __forceinline__ void output_step(float (&o)[fragments][registers], const uint32_t (&p)[fragments][4],
                                            uint32_t v, int step) {
  product_step<element, VTile::kRowBytes>(o, p, [&](int j) { return VTile::pair_after(v, j); }, step);
}

/// Some of a tile's columns, for product_step(): `pairs` pairs of chunks from pair number `first_pair` on, which only
/// the warp knows.
template <typename Tile, int pairs>
class TileColumns {
 public:
  /// `tile`: as v_operand() has it.
  __device__ __forceinline__ TileColumns(uint32_t tile, int first_pair)
      : first_(kWithinPanels ? Tile::pair_after(tile, first_pair) : tile), first_pair_(first_pair) {}

  __device__ __forceinline__ uint32_t operator()(int pair) const {
    return Tile::pair_after(first_, kWithinPanels ? pair : first_pair_ + pair);
  }

 private:
  static constexpr int kPairsOfPanel = Tile::kChunks / 2;
  // Whether offsets from the first pair are constants: the columns begin with a panel, or all lie in one.
  static constexpr bool kWithinPanels = pairs % kPairsOfPanel == 0 || kPairsOfPanel % pairs == 0;

  uint32_t first_;
  int first_pair_;
};

}  // namespace strobe::sm80
