// SPDX-License-Identifier: Apache-2.0
// S^T and dP^T of a warp's keys and a part of a step's queries, in one stage of shared memory.
#pragma once

#include "kernels/sm80/backward/scores.h"
#include "kernels/sm80/backward/smem.h"
#include "kernels/sm80/backward/stored_scores.h"
#include "kernels/sm80/tile/split_gemm.h"

namespace strobe::sm80::backward {

/// The scores of all of a warp's fragments.
template <Config C>
using WarpScores = float[fragments(C)][C.part_m / 2];

/// Rows of A by rows of B: S^T of K and Q, dP^T of V and dO. `a`, `b`: tiles.
template <Config C, typename ATile, typename BTile, int columns>
__device__ __forceinline__ void multiply_rows(WarpScores<C>& s, uint32_t a, int a_row, uint32_t b, int b_row) {
  const uint32_t first = a_operand<ATile>(a, a_row);
  const auto rows_of_a = [&](uint32_t (&operand)[fragments(C)][4], int step) {
#pragma unroll
    for (int f = 0; f < fragments(C); ++f) {
      ptx::ldmatrix_x4(operand[f], ATile::pair_after(first, step) + f * kFragmentRows * ATile::kRowBytes);
    }
  };
  const uint32_t rows_of_b = k_operand<BTile>(b) + b_row * BTile::kRowBytes;
  constexpr int kSteps = halves(C, columns) / kStep;  // of 32 bytes
  if constexpr (C.rule.element == Element::fp32) {
    split_gemm_scores<BTile, kSteps>(s, rows_of_a, rows_of_b);
  } else {
    gemm_scores<C.rule.element, BTile, kSteps>(s, rows_of_a, rows_of_b);
  }
}

/// S becomes P, and with a softcap `slope` its derivative times P, of fragments from key_first on.
template <bool masked, Config C>
__device__ __forceinline__ void to_probabilities(const ScoreBlock<C>& first, WarpScores<C>& s, WarpScores<C>& slope,
                                                 const float* lse_log2, const PartBias<C> (&bias)[fragments(C)]) {
#pragma unroll
  for (int f = 0; f < fragments(C); ++f) {
    ScoreBlock<C> block = first;
    block.key_first += f * kFragmentRows;
    to_probabilities<masked>(block, s[f], slope[f], lse_log2, bias[f]);
  }
}

}  // namespace strobe::sm80::backward
