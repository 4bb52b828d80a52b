// SPDX-License-Identifier: Apache-2.0
// dK and dV: scaled, converted, and stored by way of the shared memory that K and V leave.
#pragma once

#include "kernels/sequence/clear_rows.h"
#include "kernels/sm80/backward/exact_rows.h"
#include "kernels/sm80/backward/smem.h"
#include "kernels/sm80/tile/rows.h"

namespace strobe::sm80::backward {

/// A gradient of the CTA's keys to its tile. False if this thread of a repaired variant had a value that is not finite.
template <Config C, typename Tile, int registers>
__device__ __forceinline__ bool stage_keys(unsigned char* tile, const float (&x)[fragments(C)][registers],
                                           float factor) {
  constexpr int kPairs = registers * 2 / kStep;
  const int warp = warp_of_cta();
  bool finite = true;
#pragma unroll
  for (int f = 0; f < fragments(C); ++f) {
    const int row = warp / C.column_warps * C.rows_per_warp + f * kFragmentRows;
    finite &= stage_fragment<C.rule.element, Tile, is_repaired(C.rule)>(tile, row, warp % C.column_warps * kPairs, x[f],
                                                                        factor);
  }
  return finite;
}

/// Stores dK and dV. By the whole CTA, when nobody reads K and V any more.
template <Config C, int key_registers, int value_registers>
__device__ __forceinline__ void store_gradients(const Params& params, const Work& work,
                                                const float (&dk)[fragments(C)][key_registers],
                                                const float (&dv)[fragments(C)][value_registers]) {
  constexpr SmemPlan kPlan = smem_plan(C);
  unsigned char* const smem = shared_memory();
  const float value_factor = C.rule.dropout ? params.score.dropout.keep_factor : 1.0F;
  bool finite = stage_keys<C, KTile<C>>(smem + kPlan.k, dk, score::gradient_scale<C.rule>(params, work.k.used));
  finite &= stage_keys<C, VTile<C>>(smem + kPlan.v, dv, value_factor);
  const bool repair = __syncthreads_or(finite ? 0 : 1) != 0;
  const int first = work.n * block_n(C);
  const int batch = score::k_batch(params, work.sequence);
  const auto store = [&]<typename Tile>(Tile, const Rows& rows, int offset, int columns) {
    store_tile<Tile, block_n(C), threads_per_block(C)>(
        smem + offset, rows.row(batch, work.k.start + first, work.head_kv), rows.row_stride, work.k.used - first,
        work.k.owned - first, columns);
  };
  store(KTile<C>{}, params.dk, kPlan.k, halves(C, params.head_dim));
  store(VTile<C>{}, params.dv, kPlan.v, halves(C, params.head_dim_v));
  if (is_repaired(C.rule) && repair) {
    __syncthreads();
    repair_keys<C>(params, work, first);
  }
}

/// Keys that no query sees. Those behind the last sequence may be more than its blocks: hence the stride.
template <Config C>
__device__ __forceinline__ void store_no_gradients(const Params& params, const Work& work) {
  const int batch = score::k_batch(params, work.sequence);
  for (int first = work.n * block_n(C); first < work.k.owned; first += params.n_blocks * block_n(C)) {
    const int begin = work.k.start + first;
    const int end = work.k.start + min(first + block_n(C), work.k.owned);
    clear_rows(params.dk, halves(C, params.head_dim), batch, work.head_kv, begin, end, threadIdx.x, blockDim.x);
    clear_rows(params.dv, halves(C, params.head_dim_v), batch, work.head_kv, begin, end, threadIdx.x, blockDim.x);
  }
}

}  // namespace strobe::sm80::backward
