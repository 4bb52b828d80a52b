// SPDX-License-Identifier: Apache-2.0
// The products of float32 elements, of one warp, by those of their parts (ptx/split_numbers.h).
//
// The tensor cores truncate what they add to. So products of sixteen elements are summed by themselves, the small ones
// first, and join the accumulators by additions that round.
//
// S = Q K^T takes its operands as gemm.h's does: eight rows of four floats are a matrix of ldmatrix, too, whose element
// of a lane is the operand's. Rows of V cannot be transposed so. A lane reads four neighbouring columns of them at a
// time, for four products: column 4 g + i of 32 belongs to accumulator i and its quad g (score/fragment.h). The keys
// that a lane has of P, 2 t and 2 t + 1 of every eight, are the columns t and t + 4 of the operand.
#pragma once

#include "kernels/ptx/split_numbers.h"
#include "kernels/sm80/tile/gemm.h"

namespace strobe::sm80 {

constexpr int kSplitSteps = 2;  // of eight elements, in kStep

/// 16 x 16 elements of A.
using SplitOperand = ptx::SplitNumbers[kSplitSteps];

/// D += A B of eight columns of B.
__device__ __forceinline__ void add_parts(float* d, const SplitOperand& a, const ptx::SplitNumbers& b) {
  float sum[4];
  ptx::multiply_parts(sum, a, b);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    d[i] = __fadd_rn(d[i], sum[i]);
  }
}

/// One step of S += Q K^T over 16 columns, as score_step().
template <typename KTile, int fragments, int registers>
__device__ __forceinline__ void split_score_step(float (&s)[fragments][registers], const SplitOperand (&q)[fragments],
                                                 uint32_t k, int step) {
#pragma unroll
  for (int j = 0; j < registers / 8; ++j) {
    uint32_t words[kSplitSteps][4];
#pragma unroll
    for (int i = 0; i < kSplitSteps; ++i) {
      ptx::ldmatrix_x4(words[i], KTile::pair_after(k, kSplitSteps * step + i) + j * 16 * KTile::kRowBytes);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ptx::SplitNumbers b;
      b.cut({words[0][2 * half], words[0][2 * half + 1], words[1][2 * half], words[1][2 * half + 1]});
#pragma unroll
      for (int f = 0; f < fragments; ++f) {
        add_parts(&s[f][8 * j + 4 * half], q[f], b);
      }
    }
  }
}

/// S = Q K^T. `queries(fragments' words, step)` gives eight columns of Q; `k` as k_operand() has it.
template <typename KTile, int steps, int fragments, int registers, typename Queries>
__device__ __forceinline__ void split_gemm_scores(float (&s)[fragments][registers], const Queries& queries,
                                                  uint32_t k) {
#pragma unroll
  for (int i = 0; i < fragments * registers; ++i) {
    s[i / registers][i % registers] = 0.0F;
  }
#pragma unroll 2  // else ptxas mixes steps, and runs out of registers
  for (int step = 0; step < steps / kSplitSteps; ++step) {
    SplitOperand q[fragments];
#pragma unroll
    for (int i = 0; i < kSplitSteps; ++i) {
      uint32_t words[fragments][4];
      queries(words, kSplitSteps * step + i);
#pragma unroll
      for (int f = 0; f < fragments; ++f) {
        q[f][i].round(words[f]);
      }
    }
    split_score_step<KTile>(s, q, k, step);
  }
}

/// Probabilities become A operands where they are: sixteen columns of them, from register 8 step on.
template <int n>
__device__ __forceinline__ void to_operand(SplitOperand& p, const float (&s)[n], int step) {
#pragma unroll
  for (int i = 0; i < kSplitSteps; ++i) {
    const float* const from = &s[8 * step + 4 * i];
    const uint32_t words[4] = {__float_as_uint(from[0]), __float_as_uint(from[2]), __float_as_uint(from[1]),
                               __float_as_uint(from[3])};
    p[i].round(words);
  }
}

/// Where this lane reads four columns of the rows 2 t and 2 t + 1 of `Tile` as B: the first of them.
template <typename Tile>
__device__ __forceinline__ uint32_t split_v_operand(uint32_t tile) {
  static_assert(Tile::kChunks == 8);
  const int lane = threadIdx.x % score::kThreadsPerWarp;
  return tile + Tile::offset(lane % 4 * 2, lane / 4);
}

/// One step of a product over 16 rows of B: D += A B, 32 columns of a panel after another. `first`: as
/// split_v_operand() has it, of the first panel's first row.
template <int row_bytes, int panel_bytes, int fragments, int registers>
__device__ __forceinline__ void split_product_step(float (&d)[fragments][registers], const SplitOperand (&a)[fragments],
                                                   uint32_t first) {
  constexpr int kColumns = 4;  // that a lane reads of a row
#pragma unroll
  for (int panel = 0; panel < registers / (4 * kColumns); ++panel) {
    uint32_t words[kSplitSteps][2][kColumns];
#pragma unroll
    for (int i = 0; i < kSplitSteps; ++i) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {  // neighbouring rows are permuted by the last bit of a chunk's number
        ptx::ld_shared_v4(words[i][odd],
                          (first ^ (odd * kChunkBytes)) + panel * panel_bytes + (8 * i + odd) * row_bytes);
      }
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      ptx::SplitNumbers b;
      b.cut({words[0][0][j], words[0][1][j], words[1][0][j], words[1][1][j]});
#pragma unroll
      for (int f = 0; f < fragments; ++f) {
        add_parts(&d[f][4 * (kColumns * panel + j)], a[f], b);
      }
    }
  }
}

}  // namespace strobe::sm80
