// SPDX-License-Identifier: Apache-2.0
// dK and dV of a warpgroup's 64 keys: scaled, converted, and stored by TMA through the shared memory that K and V
// leave. Where items share blocks of keys, as sums (key_sums.h).
#pragma once

#include "kernels/sequence/clear_rows.h"
#include "kernels/sm90/backward/barriers.h"
#include "kernels/sm90/backward/coordinates.h"
#include "kernels/sm90/backward/exact_rows.h"
#include "kernels/sm90/backward/key_sums.h"
#include "kernels/sm90/backward/producer.h"
#include "kernels/sm90/backward/scores.h"
#include "kernels/sm90/backward/smem.h"

namespace strobe::sm90::backward {

/// 64 x n accumulators to 64 rows of a tile of `tile_rows` rows, in TMA's swizzled panels. Rows from `used` on, which
/// belong to no key or query, are zeros. False if this thread of a masked variant had a value that is not finite.
template <ScoreRule R, int tile_rows, int n>
__device__ __forceinline__ bool stage_rows(const float (&accumulators)[n], float factor, int used,
                                           unsigned char* rows) {
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x % kWarpgroupSize / kWarpSize;
  const auto first = static_cast<uint32_t>(__cvta_generic_to_shared(rows)) + (warp * 16 + lane % 16) * kPanelRowBytes +
                     ((lane / 16) ^ (lane % 8)) * 16;
  float zero = 0.0F;  // NaN if a value is not finite
  const bool exists[kRowsPerThread] = {!R.varlen || warpgroup_row(0) < used, !R.varlen || warpgroup_row(1) < used};
#pragma unroll
  for (int i = 0; i < n / 8; ++i) {
    uint32_t block[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float* pair = &accumulators[8 * i + 2 * r];
      if constexpr (is_masked(R)) {
        zero = __fmaf_rn(pair[0], 0.0F, __fmaf_rn(pair[1], 0.0F, zero));
      }
      block[r] = exists[r % kRowsPerThread] ? pack<R.element>(pair[0] * factor, pair[1] * factor) : 0U;
    }
    ptx::stmatrix_x4((first ^ (i % 4 * 32)) + i / 4 * tile_rows * kPanelRowBytes, block);
  }
  return zero == 0.0F;
}

/// What the sums of dV are multiplied by at the end.
template <Config C>
__device__ __forceinline__ float value_gradient_factor(const Params& params) {
  constexpr float kScale = C.rule.normalized ? kProbabilityScale : 1.0F;  // unnormalized, P is an operand as it is
  return C.rule.dropout ? kScale * params.score.dropout.keep_factor : kScale;
}

/// dK and dV of the joint design.
template <Config C>
__device__ __forceinline__ void store_gradients(const TensorMaps& maps, const Params& params, unsigned char* smem,
                                                const Work& work, int warpgroup, const float (&dk)[C.head_dim / 2],
                                                const float (&dv)[C.head_dim_v / 2]) {
  if constexpr (C.shares_keys) {
    const int part = work.group_first / params.part_heads;
    store_key_sums(params.dk_sums + key_sums_at<C>(params, work, part, warpgroup, C.head_dim), dk);
    store_key_sums(params.dv_sums + key_sums_at<C>(params, work, part, warpgroup, C.head_dim_v), dv);
    return;
  }
  constexpr SmemPlan kPlan = smem_plan(C);
  const int offset = warpgroup * kRowsPerWarpgroup * kPanelRowBytes;
  unsigned char* k_rows = smem + kPlan.k + offset;
  unsigned char* v_rows = smem + kPlan.v + offset;
  const int row = work.n * block_n(C) + warpgroup * kRowsPerWarpgroup;
  const SequenceStart start = key_start<C.rule>(params, work, work.sequence, work.k.owned);
  const bool elected = threadIdx.x % kWarpgroupSize == 0;

  bool finite = stage_rows<C.rule, block_n(C)>(dv, value_gradient_factor<C>(params), work.k.used - row,
                                               v_rows);  // these rows of V were read by this warpgroup alone
  cptx::fence_proxy_async(cptx::space_shared);
  ptx::bar_sync(kWarpgroup + warpgroup, kWarpgroupSize);
  if (elected) {
    store_rows<C.head_dim_v, block_n(C)>(maps.dv, start, row, work.head_kv, v_rows);
  }
  ptx::barrier_sync(kLastRead, kWarpgroupSize * (kKeyWarpgroups + 1));
  finite =
      stage_rows<C.rule, block_n(C)>(dk, score::gradient_scale<C.rule>(params, work.k.used) * score_gradient_factor(C),
                                     work.k.used - row, k_rows) &&
      finite;
  cptx::fence_proxy_async(cptx::space_shared);
  const bool repair = ptx::bar_red_or(kWarpgroup + warpgroup, kWarpgroupSize, !finite);
  if (elected) {
    store_rows<C.head_dim, block_n(C)>(maps.dk, start, row, work.head_kv, k_rows);
    cptx::cp_async_bulk_wait_group_read(cptx::n32_t<0>{});
  }
  if (is_masked(C.rule) && repair) {
    finish_stores(kWarpgroup + warpgroup);
    repair_keys<C, KeySide::k>(params, work, row);
    repair_keys<C, KeySide::v>(params, work, row);
  }
}

/// Keys that no query sees, by one of the consumer warpgroups. Those behind the last sequence may be more than its
/// blocks: hence the stride.
template <Config C>
__device__ __forceinline__ void store_no_gradients(const Params& params, const Work& work, int warpgroup) {
  constexpr int kRows = block_n(C) / kKeyWarpgroups;
  const int batch = score::k_batch(params, work.sequence);
  const int thread = threadIdx.x % kWarpgroupSize;
  for (int first = work.n * block_n(C) + warpgroup * kRows; first < work.k.owned;
       first += params.n_blocks * block_n(C)) {
    const int begin = work.k.start + first;
    const int end = work.k.start + min(first + kRows, work.k.owned);
    clear_rows(params.dk, params.head_dim, batch, work.head_kv, begin, end, thread, kWarpgroupSize);
    clear_rows(params.dv, params.head_dim_v, batch, work.head_kv, begin, end, thread, kWarpgroupSize);
  }
}

}  // namespace strobe::sm90::backward
