// SPDX-License-Identifier: Apache-2.0
// The joint design's queries: a warpgroup that computes dQ = dS K of every step and sends it on its way, in any order.
// It has few registers and much time, so that nobody waits for what its sums wait for.
#pragma once

#include "kernels/ptx/grid.h"
#include "kernels/sm90/backward/barriers.h"
#include "kernels/sm90/backward/joint/query_sums.h"
#include "kernels/sm90/backward/products.h"
#include "kernels/sm90/backward/visible_blocks.h"

namespace strobe::sm90::backward {

template <Config C>
class QueryWarpgroup {
 public:
  __device__ __forceinline__ QueryWarpgroup(const Params& params, unsigned char* smem, Barriers<C>& barriers)
      : params_(params), smem_(smem), barriers_(barriers) {}

  __device__ __forceinline__ void run() {
    ptx::griddepcontrol_wait();
    const Work work = work_of<C>(params_, blockIdx.x);
    if (VisibleSteps<C>(params_, work).none()) {
      return;
    }
    float* const sums = query_gradient_sums<C>(params_, work.sequence, work.template first_query_head<C>(params_));
    wait<C>(barriers_.k_full, 0);
    if constexpr (C.rule.block_mask != 0) {
      visible_steps(work, sums);
    } else {
      all_steps(work, sums + static_cast<long long>(work.m_begin) * kBlockFloats);
    }
    if constexpr (!C.shares_keys) {
      ptx::bar_arrive(kLastRead, kWarpgroupSize * (kKeyWarpgroups + 1));
    }
    if (C.staged_dq && threadIdx.x % kWarpgroupSize == 0) {
      cptx::cp_async_bulk_wait_group_read(cptx::n32_t<0>{});
    }
  }

 private:
  /// `sums`: of the first step, from which a pointer goes on; an index of each step takes ptxas more registers.
  __device__ __forceinline__ void all_steps(const Work& work, float* sums) {
    const int steps = work.steps();
    for (int group = work.template query_heads<C>(params_); group > 0; --group) {
      for (int step = steps; step > 0; --step) {
        one_step(sums);
        sums += kBlockFloats;
      }
      sums += static_cast<long long>(params_.query_blocks - steps) * kBlockFloats;
    }
  }

  /// `sums`: of the first query head.
  __device__ __forceinline__ void visible_steps(const Work& work, float* sums) {
    VisibleSteps<C> steps(params_, work);
    for (int group = 0; group < work.template query_heads<C>(params_); ++group) {
      for (int m = steps.from(group, work.m_begin); m < work.m_end; m = steps.from(group, m + 1)) {
        one_step(sums + static_cast<long long>(m) * kBlockFloats);
      }
      sums += static_cast<long long>(params_.query_blocks) * kBlockFloats;
    }
  }

  __device__ __forceinline__ void one_step(float* sums) {
    wait<C>(barriers_.handed_full[ds_.stage], ds_.parity);
#pragma unroll
    for (int part = 0; part < query_gradient_parts(C); ++part) {
      one_part(part, ds_.stage, sums + part * kPartFloats);
    }
    ds_.advance();
  }

  static constexpr SmemPlan kPlan = smem_plan(C);
  static constexpr int kBlockFloats = C.block_m * C.head_dim;
  static constexpr int kPartFloats = kBlockFloats / query_gradient_parts(C);

  __device__ __forceinline__ void one_part(int part, int stage, float* sums) {
    float dq[query_gradient_columns(C) / 2];
    ptx::wgmma_fence();
    multiply_keys<C, false>(dq, smem_, part, stage);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>(dq);
    if (part == query_gradient_parts(C) - 1) {
      arrive<C>(barriers_.handed_empty[stage]);
    }
    if constexpr (C.staged_dq) {
      static_assert(query_gradient_columns(C) / 2 == kQueryGradientPiece);
      reduce_staged(sums, dq, smem_ + kPlan.dq, kQueries);
    } else {
      reduce_from_registers(sums, dq);
    }
  }

  const Params& params_;
  unsigned char* smem_;
  Barriers<C>& barriers_;
  RingPosition<kScoreGradientStages> ds_;
};

}  // namespace strobe::sm90::backward
