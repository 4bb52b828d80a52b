// SPDX-License-Identifier: Apache-2.0
// Probabilities as the operand of P V, sixteen keys at a time, and that product.
#pragma once

#include "kernels/sm80/forward/row_rules.h"
#include "kernels/sm80/forward/smem.h"
#include "kernels/sm80/tile/split_gemm.h"
#include "kernels/sm80/tile/stored_gemm.h"

namespace strobe::sm80::forward {

/// Steps of sixteen keys that are one basic block. All of 16-bit elements, which ptxas mixes; of float32, whose steps
/// are longer, it would do so for more registers than there are.
template <Config C>
constexpr int kStepsAtOnce = C.rule.element == Element::fp32 ? 1 : C.block_n / kStep;

/// Of 16-bit elements.
template <Config C>
struct Probabilities {
  using Operand = uint32_t[4];
  using Dropout = typename RowRules<C>::Dropout;

  /// What a fragment's scores became in step first + i of block n, from s[8 i] on.
  __device__ __forceinline__ static void to_operand(Operand& p, const float (&s)[warp_keys(C) / 2], Dropout& dropout,
                                                    int n, int first, int i) {
    score::to_operand<operand_of(C)>(p, s, i);
    dropout.apply(p, n, first + i);
  }

  /// O += P V of these keys.
  template <int registers>
  __device__ __forceinline__ static void multiply_values(float (&o)[fragments(C)][registers],
                                                         const Operand (&p)[fragments(C)], uint32_t values, int step) {
    if constexpr (C.stored_operands) {
      stored_output_step<C.stored, CopiedVTile<C>>(o, p, v_operand<CopiedVTile<C>>(values), step);
    } else {
      output_step<C.rule.element, VTile<C>>(o, p, v_operand<VTile<C>>(values), step);
    }
  }
};

/// Of float32.
template <Config C>
  requires(C.rule.element == Element::fp32)
struct Probabilities<C> {
  using Operand = SplitOperand;
  using Dropout = typename RowRules<C>::Dropout;

  __device__ __forceinline__ static void to_operand(Operand& p, float (&s)[warp_keys(C) / 2], Dropout& dropout, int n,
                                                    int step, int) {
    dropout.apply(s, n, step);
    sm80::to_operand(p, s, 0);
  }

  template <int registers>
  __device__ __forceinline__ static void multiply_values(float (&o)[fragments(C)][registers],
                                                         const Operand (&p)[fragments(C)], uint32_t values, int step) {
    using Tile = VTile<C>;
    const uint32_t first = split_v_operand<Tile>(values) + step * kStep * Tile::kRowBytes;
    split_product_step<Tile::kRowBytes, Tile::kPanelBytes>(o, p, first);
  }
};

}  // namespace strobe::sm80::forward
