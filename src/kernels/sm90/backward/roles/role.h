// SPDX-License-Identifier: Apache-2.0
// What the two consumer warpgroups by roles have in common: their walk over a step after the other, and the rings that
// they share.
#pragma once

#include "kernels/sm90/backward/barriers.h"
#include "kernels/sm90/backward/variants.h"
#include "kernels/sm90/backward/visible_blocks.h"

namespace strobe::sm90::backward {

/// What both roles have in common.
template <Config C>
class Role {
 public:
  static constexpr SmemPlan kPlan = smem_plan(C);

  __device__ __forceinline__ Role(const Params& params, unsigned char* smem, Barriers<C>& barriers)
      : params_(params), smem_(smem), barriers_(barriers) {}

 protected:
  __device__ __forceinline__ const float* rows_of(int offset, int bytes, int stage) const {
    return reinterpret_cast<const float*>(smem_ + offset + stage * bytes);
  }

  /// This thread's part of a stage of P: 16 bytes at [i][thread], so that a warp's accesses lie in a row.
  __device__ __forceinline__ uint4* exchanged(int stage) const {
    return reinterpret_cast<uint4*>(smem_ + kPlan.p + stage * kPlan.ds_bytes) + threadIdx.x % kWarpgroupSize;
  }

  /// Calls body(head, m) for every step.
  template <typename Body>
  __device__ __forceinline__ void for_each_step(const Work& work, Body body) {
    if constexpr (C.rule.block_mask != 0) {
      VisibleSteps<C> steps(params_, work);
      for (int head = 0; head < params_.heads_per_kv; ++head) {
        for (int m = steps.from(head, work.m_begin); m < work.m_end; m = steps.from(head, m + 1)) {
          body(head, m);
          advance();
        }
      }
      return;
    }
    int m = work.m_begin;
    int head = 0;
    for (int remaining = work.steps() * work.template query_heads<C>(params_); remaining > 0; --remaining) {
      body(head, m);
      if (++m == work.m_end) {
        m = work.m_begin;
        ++head;
      }
      advance();
    }
  }

  __device__ __forceinline__ void advance() {
    q_.advance();
    do_.advance();
    p_.advance();
    ds_.advance();
    started_ = true;
  }

  const Params& params_;
  unsigned char* smem_;
  Barriers<C>& barriers_;
  RingPosition<C.q_stages> q_;
  RingPosition<C.do_stages> do_;
  RingPosition<C.p_stages> p_;
  RingPosition<C.ds_stages> ds_;
  bool started_ = false;
};

}  // namespace strobe::sm90::backward
