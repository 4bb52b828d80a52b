// SPDX-License-Identifier: Apache-2.0
// From global to shared memory: an item's keys and values, and each step's queries with their dO, LSE and D.
#pragma once

#include "kernels/sm80/backward/smem.h"
#include "kernels/sm80/backward/steps.h"
#include "kernels/sm80/tile/copy.h"

namespace strobe::sm80::backward {

/// block_m floats from a workspace, by the threads from `first_thread` on.
template <Config C>
__device__ __forceinline__ void start_row_copy(uint32_t to, const float* rows, int first_thread) {
  constexpr int kPerChunk = kChunkBytes / 4;
  const int chunk = static_cast<int>(threadIdx.x) - first_thread;
  if (chunk >= 0 && chunk < C.block_m / kPerChunk) {
    ptx::cp_async_16(to + chunk * kChunkBytes, rows + chunk * kPerChunk, kChunkBytes);
  }
}

/// Starts copying K and V of key block n.
template <Config C>
__device__ __forceinline__ void start_keys(const Params& params, const sequence::Sequence& rows, int sequence,
                                           int head_kv, int n, uint32_t smem) {
  constexpr SmemPlan kPlan = smem_plan(C);
  constexpr int kThreads = threads_per_block(C);
  const int first = n * block_n(C);
  const int batch = score::k_batch(params, sequence);
  start_copy<KTile<C>, block_n(C), kThreads>(smem + kPlan.k, params.k.row(batch, rows.k.start + first, head_kv),
                                             params.k.row_stride, rows.k.used - first, halves(C, params.head_dim));
  start_copy<VTile<C>, block_n(C), kThreads>(smem + kPlan.v, params.v.row(batch, rows.k.start + first, head_kv),
                                             params.v.row_stride, rows.k.used - first, halves(C, params.head_dim_v));
}

/// Starts copying Q and dO of query block m of a query head.
template <Config C>
__device__ __forceinline__ void start_queries(const Params& params, const sequence::Sequence& rows, int sequence,
                                              int head, int m, uint32_t smem, int stage) {
  constexpr SmemPlan kPlan = smem_plan(C);
  constexpr int kThreads = threads_per_block(C);
  const int first = m * C.block_m;
  const int batch = score::q_batch(params, sequence);
  start_copy<QTile<C>, C.block_m, kThreads>(smem + kPlan.q + stage * kPlan.q_bytes,
                                            params.q.row(batch, rows.q.start + first, head), params.q.row_stride,
                                            rows.q.used - first, halves(C, params.head_dim));
  start_copy<DoTile<C>, C.block_m, kThreads>(smem + kPlan.d_o + stage * kPlan.do_bytes,
                                             params.d_o.row(batch, rows.q.start + first, head), params.d_o.row_stride,
                                             rows.q.used - first, halves(C, params.head_dim_v));
}

/// Starts copying LSE and D of the same.
template <Config C>
__device__ __forceinline__ void start_rows(const Params& params, int sequence, int head, int m, uint32_t smem,
                                           int stage) {
  constexpr SmemPlan kPlan = smem_plan(C);
  static_assert(C.block_m / 2 <= threads_per_block(C));
  const long long row = (score::first_block_of<C.rule>(params, sequence, head, C.block_m) + m) * C.block_m;
  start_row_copy<C>(smem + kPlan.lse + stage * kPlan.row_bytes, params.lse_log2 + row, 0);
  start_row_copy<C>(smem + kPlan.d_sum + stage * kPlan.row_bytes, params.d_sum + row, C.block_m / 4);
}

}  // namespace strobe::sm80::backward
