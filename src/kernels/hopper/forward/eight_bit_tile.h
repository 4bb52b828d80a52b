// SPDX-License-Identifier: Apache-2.0
// A tile of 8-bit operands, by one warpgroup.
//
// In its turn on the tensor cores a warpgroup multiplies P V of one block, adds it to O, and multiplies Q K^T of the
// next; the softmax runs under the other warpgroups' turns. So the sums of both products take the same registers, and
// the warpgroups stay out of step. A tile has one turn more than blocks, for its first scores.
#pragma once

#include "kernels/hopper/forward/eight_bit.h"
#include "kernels/hopper/forward/output.h"
#include "kernels/hopper/forward/rings.h"
#include "kernels/hopper/forward/tile_rules.h"
#include "kernels/hopper/tile/gemm.h"

namespace strobe::hopper::forward {

/// Sums of products of Q and the ring's next block of K.
template <Config C, typename Sum>
__device__ __forceinline__ void multiply_keys(Sum (&sums)[C.block_n / 2], Rings<C>& rings) {
  ptx::wgmma_fence();
  gemm_scores_8<C.operands, C.head_dim>(sums, rings.queries(), rings.keys());
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>(sums);
  rings.scores_done();
}

/// O += P V of the ring's next block of V.
template <Config C, typename Sum>
__device__ __forceinline__ void add_values(float (&o)[C.head_dim_v / 2], const typename EightBitSoftmax<C>::Operand& p,
                                           Rings<C>& rings, const EightBitSoftmax<C>& softmax) {
  constexpr int kColumns = C.head_dim_v > 128 ? 64 : C.head_dim_v;  // as many as there are registers for
#pragma unroll
  for (int first = 0; first < C.head_dim_v; first += kColumns) {
    Sum block[kColumns / 2];
    ptx::wgmma_fence();
    gemm_output_8<C.operands>(block, p, rings.values() + (first * kPanelRowBytes >> 4));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>(block);
    add_block<C>(o, first, block, softmax.block_factor);
  }
  rings.output_done();
}

/// Blocks from n down to the tile's first; O as it is to be divided by the row's sum. `stages` are the scales.
template <Config C>
__device__ __forceinline__ void eight_bit_tile(float (&o)[C.head_dim_v / 2], EightBitSoftmax<C>& softmax,
                                               Rings<C>& rings, const Params& params, const unsigned char* stages,
                                               const TileRules<C>& rules, const TileWork& work, int n) {
  using Sum = typename ProductSumOf<C.operands>::Type;
  const int warpgroup = rings.warpgroup();
  Sum sums[C.block_n / 2];
  softmax = {};
  softmax.begin(params, work, warpgroup);
  clear<C>(o);
  rings.wait_q();
  rings.wait_k();
  Turns<C>::wait(warpgroup);
  multiply_keys<C>(sums, rings);
  Turns<C>::pass(warpgroup);
#pragma unroll 1
  for (; n >= work.n_begin; --n) {
    rings.wait_v();  // with it its scales
    const auto& scales = *reinterpret_cast<const BlockScales<C>*>(stages + rings.value_stage() * scale_bytes(C));
    float s[C.block_n / 2];
    softmax.scale(s, sums, scales);
    if (rules.mask.needed(n)) {
      rules.mask.apply(s, n);
    }
    typename EightBitSoftmax<C>::Operand p;
    if (softmax.step(p, s, scales)) {
      rescale<C>(o, softmax.correction);
    }
    const bool more = n > work.n_begin;
    if (more) {
      rings.wait_k();
    }
    Turns<C>::wait(warpgroup);
    add_values<C, Sum>(o, p, rings, softmax);
    if (more) {
      multiply_keys<C>(sums, rings);
    }
    Turns<C>::pass(warpgroup);
  }
  rings.release_q();
  softmax.finish(params, work, warpgroup);
  if constexpr (C.rotate_back) {
    rotate_back<C>(o, params.eight_bit.v_signs);
  }
}

}  // namespace strobe::hopper::forward
