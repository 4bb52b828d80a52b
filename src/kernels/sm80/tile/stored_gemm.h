// SPDX-License-Identifier: Apache-2.0
// The products of one step with rows of K and V as they are stored, in 8 bits: a lane makes float16 operands of the
// bytes that ldmatrix gives it. Of two neighbouring bytes ldmatrix makes one element.
//
// K: a lane has four neighbouring columns of sixteen, 4 t to 4 t + 3 (t = lane % 4), where an operand of 16 bits has
// 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. So columns of Q are stored in that order (stored_column()), as the order of a
// sum's terms is free. V, transposed: a register has two keys of two neighbouring columns, of which one belongs to each
// of two products; what becomes of the columns of O is in score/fragment.h.
#pragma once

#include "kernels/math/stored.h"
#include "kernels/sm80/tile/gemm.h"

namespace strobe::sm80 {

/// Where a row of Q has what is multiplied with columns 4 t and 4 t + 1 of sixteen, or with the two after those.
constexpr int stored_column(int t, bool later) { return (later ? 8 : 0) + 2 * t; }

/// S = Q K^T. `KTile` counts pairs of elements; `queries` and `k` as gemm_scores() has them.
template <Element stored, typename KTile, int steps, int fragments, int registers, typename Queries>
__device__ __forceinline__ void stored_scores(float (&s)[fragments][registers], const Queries& queries, uint32_t k) {
#pragma unroll
  for (int f = 0; f < fragments; ++f) {
#pragma unroll
    for (int i = 0; i < registers; ++i) {
      s[f][i] = 0.0F;
    }
  }
#pragma unroll
  for (int pair = 0; pair < steps / 2; ++pair) {  // of steps of sixteen columns, each of which is a chunk
    uint32_t q[2][fragments][4];
    queries(q[0], 2 * pair);
    queries(q[1], 2 * pair + 1);
    const uint32_t first = KTile::pair_after(k, pair);
#pragma unroll
    for (int j = 0; j < registers / 8; ++j) {
      uint32_t bytes[4];  // of keys 16 j to 16 j + 7, both chunks, and of the eight keys after those
      ptx::ldmatrix_x4(bytes, first + j * 16 * KTile::kRowBytes);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint2 b = neighbours<stored>(bytes[i]);
#pragma unroll
        for (int f = 0; f < fragments; ++f) {
          float* const part = &s[f][8 * j + 4 * (i / 2)];
          ptx::mma_m16n8k16<Element::fp16>(part, q[i % 2][f], b.x, b.y, part[0], part[1], part[2], part[3]);
        }
      }
    }
  }
}

/// One step of O += P V over 16 keys. `VTile` counts pairs of elements; `v` as v_operand() has it.
template <Element stored, typename VTile, int fragments, int registers>
__device__ __forceinline__ void stored_output_step(float (&o)[fragments][registers], const uint32_t (&p)[fragments][4],
                                                   uint32_t v, int step) {
#pragma unroll
  for (int pair = 0; pair < registers / 16; ++pair) {
    uint32_t bytes[4];  // of eight keys and of the eight after those: of one chunk, and of the next
    ptx::ldmatrix_x4_trans(bytes, VTile::pair_after(v, pair) + step * kStep * VTile::kRowBytes);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint2 low = alternate<stored>(bytes[2 * i]);
      const uint2 high = alternate<stored>(bytes[2 * i + 1]);
#pragma unroll
      for (int f = 0; f < fragments; ++f) {
        float* const even = &o[f][8 * (2 * pair + i)];
        float* const odd = even + 4;
        ptx::mma_m16n8k16<Element::fp16>(even, p[f], low.x, high.x, even[0], even[1], even[2], even[3]);
        ptx::mma_m16n8k16<Element::fp16>(odd, p[f], low.y, high.y, odd[0], odd[1], odd[2], odd[3]);
      }
    }
  }
}

}  // namespace strobe::sm80
