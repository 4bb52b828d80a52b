// SPDX-License-Identifier: Apache-2.0
// By roles: dS of the P that comes as halves, and its way to global memory.
#pragma once

#include "kernels/sm90/backward/scores.h"
#include "kernels/sm90/backward/variants.h"
#include "kernels/sm90/tile/coordinates.h"

namespace strobe::sm90::backward {

/// dS = P (dP - D) of sixteen queries, number i of a step's, in the place of dP. `chunk`: this thread's P, of which
/// those that are dropped are negative where they are marked. D comes scaled as P is. kept(two, half, r): of the dP of
/// two neighbours, of the first or second eight queries and of key r, what is not dropped.
template <Config C, typename Kept>
__device__ __forceinline__ void score_gradients(Scores<C>& dp, const RowNumbers<C>& d_sum, const uint4& chunk, int i,
                                                const Kept& kept) {
  const uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float2 d = row_numbers<C>(d_sum, 2 * i + half);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const float2 p = of_halves<C>(words[2 * half + r]);
      float* two = &dp[8 * i + 4 * half + 2 * r];
      if constexpr (marks_dropped(C.rule)) {
        two[0] = score::marked_score_gradient(p.x, two[0] * kProbabilityScale, d.x);
        two[1] = score::marked_score_gradient(p.y, two[1] * kProbabilityScale, d.y);
      } else {
        const float2 gradient = kept(two, half, r);
        two[0] = p.x * __fmaf_rn(gradient.x, kProbabilityScale, -d.x);
        two[1] = p.y * __fmaf_rn(gradient.y, kProbabilityScale, -d.y);
      }
    }
  }
}

/// visit(i, kept) for each sixteen queries of a step, with what score_gradients() asks for: what is dropped is drawn
/// where P's signs do not say it, of a part of the queries at a time.
template <Config C, typename Visit>
__device__ __forceinline__ void for_each_kept_part(const ScoreBlock<C>& block, const Visit& visit) {
  constexpr bool kDraws = C.rule.dropout && !marks_dropped(C.rule);
  constexpr int kPart = kDraws ? kDropoutColumns : C.block_m;
#pragma unroll
  for (int first = 0; first < C.block_m; first += kPart) {
    const GradientDropout<C, kPart, kDraws> dropout(block, first);
#pragma unroll
    for (int i = 0; i < kPart / 16; ++i) {
      visit(first / 16 + i, [&](const float* two, int half, int r) { return dropout.kept(two, 2 * i + half, r); });
    }
  }
}

/// A step's dS in `tile` to its place, by one thread; `head`: of the group that reads the key head.
template <Config C>
__device__ __forceinline__ void send_score_gradients(const Params& params, const Work& work, int head, int m,
                                                     const unsigned char* tile) {
  constexpr int kBytes = C.block_m / kScoreTile * kScoreTileBytes;
  constexpr int kCopyBytes = C.debug ? kScoreTileBytes : kBytes;  // initcheck does not see more written by one copy
  const long long heads = static_cast<long long>(work.launch_head) * params.heads_per_kv + head;
  const long long index = (heads * params.key_blocks + work.n - params.first_key_block) * params.m_blocks + m;
#pragma unroll
  for (int i = 0; i < kBytes; i += kCopyBytes) {
    cptx::cp_async_bulk(cptx::space_global, cptx::space_shared, params.ds + index * kBytes + i, tile + i, kCopyBytes);
  }
  cptx::cp_async_bulk_commit_group();
}

}  // namespace strobe::sm90::backward
