// SPDX-License-Identifier: Apache-2.0
// dQ on its way from the accumulators' registers to its rows: four threads exchange what they hold so that each stores
// 16 bytes of a row.
#pragma once

#include "kernels/sm90/backward/config.h"
#include "kernels/sm90/backward/coordinates.h"
#include "kernels/sm90/tile/fragment.h"

namespace strobe::sm90::backward {

/// Thread i of a quad has word j of four 16-byte chunks in words[j], of chunk j its own; afterwards all of chunk i.
__device__ __forceinline__ uint4 exchange_quad(const uint32_t (&words)[4]) {
  const int lane = threadIdx.x % 4;
  uint32_t chunk[4];
#pragma unroll
  for (int turn = 0; turn < 4; ++turn) {
    // In each turn thread i gives word i ^ turn to thread i ^ turn.
    const int other = lane ^ turn;
    const uint32_t give = other == 0 ? words[0] : other == 1 ? words[1] : other == 2 ? words[2] : words[3];
    const uint32_t got = __shfl_xor_sync(kFullWarp, give, turn);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i == other) {
        chunk[i] = got;
      }
    }
  }
  return {chunk[0], chunk[1], chunk[2], chunk[3]};
}

/// Row 0 of a part of block m of dQ, and its first column.
template <Config C>
struct QueryPart {
  int row, column;

  __device__ __forceinline__ QueryPart(int m, int part)
      : row(m * C.block_m + (query_gradient_by_rows(C) ? part * kRowsPerWarpgroup : 0)),
        column(query_gradient_by_rows(C) ? 0 : part * query_gradient_columns(C)) {}
};

/// Stores 32 columns of this thread's row r of a part, from the part's column 8 * `first` on, of which it has words.
/// Rows that are owned and not in use are zeros.
template <Config C>
__device__ __forceinline__ void store_query_columns(const Params& params, const sequence::Sequence& rows, int sequence,
                                                    int head, const QueryPart<C>& part, int first, int r,
                                                    const uint32_t (&words)[4]) {
  const uint4 chunk = exchange_quad(words);
  const int at = part.column + (first + static_cast<int>(threadIdx.x % 4)) * 8;
  const int query = part.row + warpgroup_row(r);
  if (query < rows.q.owned && at < params.head_dim) {
    unsigned short* to = params.dq.row(score::q_batch(params, sequence), rows.q.start + query, head) + at;
    *reinterpret_cast<uint4*>(to) = query < rows.q.used ? chunk : make_uint4(0, 0, 0, 0);
  }
}

/// NaN if one of four sums is not finite, or `zero` is NaN; else 0.
__device__ __forceinline__ float not_finite(float a, float b, float c, float d, float zero) {
  return __fmaf_rn(a, 0.0F, __fmaf_rn(b, 0.0F, __fmaf_rn(c, 0.0F, __fmaf_rn(d, 0.0F, zero))));
}

/// A part of dQ in the inputs' element, scaled.
template <Config C>
struct QueryGradientPart {
  static constexpr int kWords = query_gradient_columns(C) / 8;
  uint32_t words[kRowsPerThread][kWords];
  bool finite = true;  // always in variants without a mask

  __device__ __forceinline__ QueryGradientPart(const float (&dq)[4 * kWords], float factor) {
    float zero = 0.0F;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (is_masked(C.rule)) {
        zero = not_finite(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3], zero);
      }
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        words[r][i] = pack<C.rule.element>(dq[4 * i + 2 * r] * factor, dq[4 * i + 2 * r + 1] * factor);
        asm volatile("" : "+r"(words[r][i]));  // now: the accumulators' registers are needed for what follows
      }
    }
    finite = zero == 0.0F;
  }

  __device__ __forceinline__ void store(const Params& params, const sequence::Sequence& rows, int sequence, int head,
                                        const QueryPart<C>& part) const {
#pragma unroll
    for (int first = 0; first < kWords; first += 4) {
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        const uint32_t* own = &words[r][first];
        store_query_columns<C>(params, rows, sequence, head, part, first, r, {own[0], own[1], own[2], own[3]});
      }
    }
  }
};

}  // namespace strobe::sm90::backward
