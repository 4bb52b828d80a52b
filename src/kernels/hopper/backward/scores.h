// SPDX-License-Identifier: Apache-2.0
// What a thread does to its scores: probabilities, their gradients, masks, and dS on its way to shared memory. All
// tiles are transposed: rows are keys, columns are queries.
#pragma once

#include "kernels/hopper/backward/config.h"
#include "kernels/hopper/backward/params.h"
#include "kernels/hopper/backward/smem.h"
#include "kernels/hopper/backward/work.h"
#include "kernels/hopper/ptx/warpgroup.h"
#include "kernels/hopper/tile/fragment.h"
#include "kernels/math/constants.h"

namespace strobe::hopper::backward {

/// This thread within its warpgroup, read anew: what is computed from it does not stay in registers between steps.
__device__ __forceinline__ int thread_of_warpgroup() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(thread));
  return thread % kWarpgroupSize;
}

template <Config C>
using Scores = float[C.block_m / 2];

/// Each of this thread's scores whose key its query does not see becomes `value`, whatever it was.
template <Config C>
__device__ __forceinline__ void hide(const Params& params, const score::Sequence& sequence, int key_first,
                                     int query_first, Scores<C>& x, float value) {
  const int thread = thread_of_warpgroup();
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const int key = key_first + thread / kWarpSize * 16 + thread % kWarpSize / 4 + 8 * r;
    const score::QueryRange queries = score::visible_queries<C.rule>(params.visibility, sequence.diagonal, key);
    // Queries [first, last] of this block see the key; as distances from this thread's first column.
    const int column = query_first + 2 * (thread % 4);
    const int first = key < sequence.k.used ? queries.first - column : C.block_m;
    const int last = queries.last - column;
#pragma unroll
    for (int j = 0; j < C.block_m / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const bool hidden = 8 * j + c < first || (C.rule.mask_left && 8 * j + c > last);
        float& score = x[4 * j + 2 * r + c];
        score = hidden ? value : score;
      }
    }
  }
}

/// LSE or D of a step's queries: of every 64, each lane of a warp keeps two, and asks others for those that it needs.
/// If each read its own, the warps would take a tenth of shared memory's time, which the WGMMAs need.
template <Config C>
using RowNumbers = float2[C.block_m / 64];

template <Config C>
__device__ __forceinline__ void load_row_numbers(RowNumbers<C>& x, const float* rows) {
#pragma unroll
  for (int i = 0; i < C.block_m / 64; ++i) {
    x[i] = reinterpret_cast<const float2*>(rows + 64 * i)[threadIdx.x % kWarpSize];
  }
}

/// Those of this thread's columns within eight, number j of the block's.
template <Config C>
__device__ __forceinline__ float2 row_numbers(const RowNumbers<C>& x, int j) {
  return {ptx::shfl_quad(x[j / 8].x, j % 8), ptx::shfl_quad(x[j / 8].y, j % 8)};
}

/// P = exp2(S scale - LSE).
template <Config C>
__device__ __forceinline__ void probabilities(Scores<C>& s, const RowNumbers<C>& lse_log2, float scale_log2) {
#pragma unroll
  for (int j = 0; j < C.block_m / 8; ++j) {
    const float2 lse = row_numbers<C>(lse_log2, j);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      s[4 * j + 2 * r] = ptx::ex2_approx(__fmaf_rn(s[4 * j + 2 * r], scale_log2, -lse.x));
      s[4 * j + 2 * r + 1] = ptx::ex2_approx(__fmaf_rn(s[4 * j + 2 * r + 1], scale_log2, -lse.y));
    }
  }
}

/// P and dS = P (dP - D) as operands, sixteen queries at a time, so that scores leave their registers as operands need
/// them.
template <Config C>
__device__ __forceinline__ void to_operands(uint32_t (&p)[C.block_m / 16][4], uint32_t (&ds)[C.block_m / 16][4],
                                            const Scores<C>& probability, const Scores<C>& dp,
                                            const RowNumbers<C>& d_sum) {
#pragma unroll
  for (int j = 0; j < C.block_m / 8; ++j) {
    const float2 d = row_numbers<C>(d_sum, j);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const int at = 4 * j + 2 * r;
      const float low = probability[at];
      const float high = probability[at + 1];
      p[j / 2][j % 2 * 2 + r] = pack<C.rule.element>(low, high);
      ds[j / 2][j % 2 * 2 + r] = pack<C.rule.element>(low * (dp[at] - d.x), high * (dp[at + 1] - d.y));
    }
  }
}

/// dS^T to shared memory: panels of 64 queries x all keys of the tile, swizzled as TMA would. `tile` is the stage.
template <Config C>
__device__ __forceinline__ void store_score_gradients(const uint32_t (&ds)[C.block_m / 16][4], unsigned char* tile,
                                                      int warpgroup) {
  const int thread = thread_of_warpgroup();
  const int lane = thread % kWarpSize;
  const int warp = thread / kWarpSize;
  // Lanes 8 i to 8 i + 7 name the rows of register i's 8 x 8 block: keys + 8 (i % 2), queries + 8 (i / 2).
  const int key = warpgroup * kRowsPerWarpgroup + warp * 16 + lane % 16;
  const auto first =
      static_cast<uint32_t>(__cvta_generic_to_shared(tile)) + key * kPanelRowBytes + ((lane / 16) ^ (lane % 8)) * 16;
#pragma unroll
  for (int i = 0; i < C.block_m / 16; ++i) {
    ptx::stmatrix_x4((first ^ (i % 4 * 32)) + i / 4 * block_n(C) * kPanelRowBytes, ds[i]);
  }
}

}  // namespace strobe::hopper::backward
