// SPDX-License-Identifier: Apache-2.0
// From global to shared memory: a warp's rows of Q, and blocks of keys and values some steps ahead of their use.
#pragma once

#include "kernels/ampere/forward/block_walk.h"
#include "kernels/ampere/forward/smem.h"
#include "kernels/ampere/tile/copy.h"

namespace strobe::ampere::forward {

/// Keys and values of one tile, block by block in the order of the walk. The CTA's threads meet in before_scores():
/// from then on nobody reads the stage of the step before. With a single stage, K of the next block arrives under the
/// softmax and P V, V of this block under Q K^T, and the threads meet again in after_scores().
template <Config C>
class KeyValueLoader {
 public:
  __device__ __forceinline__ KeyValueLoader(const Params& params, const TileWork& work)
      : params_(params), used_(work.k.used), walk_(params, work) {
    const int head = kv_head(params, work);
    rows().keys = params.k.row(k_batch(params, work), work.k.start, head);
    rows().values = params.v.row(k_batch(params, work), work.k.start, head);
  }

  __device__ __forceinline__ BlockWalk<C>& walk() { return walk_; }

  /// With the first block; what else the thread has on its way (Q) belongs to it.
  __device__ __forceinline__ void start(int n) {
    if constexpr (kAlternates) {
      start_keys(0, n);
      ptx::cp_async_commit_group();
    } else {
#pragma unroll
      for (int stage = 0; stage < C.stages - 1; ++stage) {
        start_both(stage, n);
        n = walk_.before(n);
      }
    }
  }

  /// Waits for K of block n, and with several stages for V.
  __device__ __forceinline__ void before_scores(int n) {
    ptx::cp_async_wait_group<kAlternates ? 0 : C.stages - 2>();
    __syncthreads();
    if constexpr (kAlternates) {
      start_values(0, n);
      ptx::cp_async_commit_group();
    }
  }

  /// Waits for V of block n, and starts what comes next, under the products that were just issued.
  __device__ __forceinline__ void after_scores(int n) {
    if constexpr (kAlternates) {
      ptx::cp_async_wait_group<0>();
      __syncthreads();
      n = walk_.before(n);
      if (walk_.has(n)) {
        start_keys(0, n);
      }
      ptx::cp_async_commit_group();
    } else {
#pragma unroll
      for (int ahead = 1; ahead < C.stages; ++ahead) {
        n = walk_.before(n);
      }
      start_both(stage_ == 0 ? C.stages - 1 : stage_ - 1, n);
    }
  }

  __device__ __forceinline__ void end_step() {
    if constexpr (!kAlternates) {
      stage_ = stage_ + 1 == C.stages ? 0 : stage_ + 1;
    }
  }

  __device__ __forceinline__ uint32_t keys() const { return tiles() + kPlan.k + stage_ * kPlan.k_bytes; }
  __device__ __forceinline__ uint32_t values() const { return tiles() + kPlan.v + stage_ * kPlan.v_bytes; }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);
  static constexpr bool kAlternates = C.stages == 1;

  static constexpr int kThreads = threads_per_block(C);

  __device__ __forceinline__ static uint32_t tiles() { return shared_address(shared_memory()); }

  __device__ __forceinline__ void start_keys(int stage, int n) const {
    const int first = n * C.block_n;
    start_copy<KTile<C>, C.block_n, kThreads>(tiles() + kPlan.k + stage * kPlan.k_bytes,
                                              rows().keys + first * params_.k.row_stride, params_.k.row_stride,
                                              used_ - first, params_.head_dim);
  }
  __device__ __forceinline__ void start_values(int stage, int n) const {
    const int first = n * C.block_n;
    start_copy<VTile<C>, C.block_n, kThreads>(tiles() + kPlan.v + stage * kPlan.v_bytes,
                                              rows().values + first * params_.v.row_stride, params_.v.row_stride,
                                              used_ - first, params_.head_dim_v);
  }

  __device__ __forceinline__ void start_both(int stage, int n) const {
    if (walk_.has(n)) {
      start_keys(stage, n);
      start_values(stage, n);
    }
    ptx::cp_async_commit_group();  // an empty one counts, too
  }

  /// In shared memory, as they are four registers that the widest tiles lack: volatile, so that they stay there.
  __device__ __forceinline__ static volatile KeyValueRows& rows() {
    return reinterpret_cast<volatile KeyValueRows*>(shared_memory() + kPlan.rows)[threadIdx.x / kWarpSize];
  }

  const Params& params_;
  int used_;  // keys
  BlockWalk<C> walk_;
  int stage_ = 0;  // of the block in use
};

/// A warp's rows of Q as A operands.
template <Config C>
class Queries {
 public:
  static constexpr int kSteps = C.head_dim / kStep;

  /// Starts the copy; `tile`: of this warp.
  __device__ __forceinline__ Queries(const Params& params, const TileWork& work, uint32_t tile, int first_row)
      : tile_(tile) {
    start_copy<QTile<C>, C.rows_per_warp, kWarpSize>(
        tile, params.q.row(q_batch(params, work), work.q.start + first_row, work.head), params.q.row_stride,
        work.q.used - first_row, params.head_dim);
  }

  /// When the copy is done and seen by the whole warp.
  __device__ __forceinline__ void arrived() {
    if constexpr (C.q_in_registers) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        load(registers_[step], step);
      }
    }
  }

  __device__ __forceinline__ void operator()(uint32_t (&q)[fragments(C)][4], int step) const {
    if constexpr (C.q_in_registers) {
#pragma unroll
      for (int i = 0; i < 4 * fragments(C); ++i) {
        q[i / 4][i % 4] = registers_[step][i / 4][i % 4];
      }
    } else {
      load(q, step);
    }
  }

 private:
  __device__ __forceinline__ void load(uint32_t (&q)[fragments(C)][4], int step) const {
#pragma unroll
    for (int f = 0; f < fragments(C); ++f) {
      const uint32_t first = a_operand<QTile<C>>(tile_, 0);
      ptx::ldmatrix_x4(q[f], QTile<C>::pair_after(first, step) + f * kFragmentRows * QTile<C>::kRowBytes);
    }
  }

  uint32_t tile_;
  uint32_t registers_[C.q_in_registers ? kSteps : 1][fragments(C)][4];
};

}  // namespace strobe::ampere::forward
