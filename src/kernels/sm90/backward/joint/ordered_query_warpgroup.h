// SPDX-License-Identifier: Apache-2.0
// The joint design's queries where the sums are added to in order: a warpgroup that computes dQ = dS K of every step
// and stages it for the senders (query_sender.h), or adds it to the sums itself and stores dQ where nobody comes after
// (query_gradient_semaphore.h).
#pragma once

#include "kernels/ptx/grid.h"
#include "kernels/sm90/backward/barriers.h"
#include "kernels/sm90/backward/joint/query_gradient_semaphore.h"
#include "kernels/sm90/backward/joint/query_rows.h"
#include "kernels/sm90/backward/joint/query_sums.h"
#include "kernels/sm90/backward/products.h"

namespace strobe::sm90::backward {

template <Config C>
class OrderedQueryWarpgroup {
 public:
  __device__ __forceinline__ OrderedQueryWarpgroup(const Params& params, unsigned char* smem, Barriers<C>& barriers)
      : params_(params), smem_(smem), barriers_(barriers) {}

  __device__ __forceinline__ void run() {
    ptx::griddepcontrol_wait();
    const Work work = work_of<C>(params_, blockIdx.x);
    if (work.steps() > 0) {
      all_steps(work);
    }
    wait<C>(barriers_.staged_empty, staged_parity_ ^ 1);
    for (int sender = 0; sender < kSenders; ++sender) {
      announce(nullptr, {});
      next_sender();
    }
  }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);
  using Part = float[query_gradient_columns(C) / 2];
  static_assert(!C.ordered || query_gradient_columns(C) / 2 == kQueryGradientPiece);
  static_assert(!C.ordered || query_gradient_parts(C) == kOrderedParts);

  __device__ __forceinline__ void all_steps(const Work& work) {
    if (threadIdx.x % kWarpgroupSize == 0) {
      state().order = QueryGradientOrder::of<C>(params_, work);
    }
    ptx::bar_sync(kQueries, kWarpgroupSize);
    const QueryGradientOrder& order = state().order;
    int head = work.template first_query_head<C>(params_);
    auto first_block = static_cast<int>(score::first_block_of<C.rule>(params_, work.sequence, head, C.block_m));
    wait<C>(barriers_.k_full, 0);
    for (int group = work.template query_heads<C>(params_); group > 0; --group) {
      for (int m = order.m_first; m != order.m_past; m += order.direction) {
        wait<C>(barriers_.handed_full[ds_.stage], ds_.parity);
        if (order.last(m)) {
          end_sums(first_block + m, head, m, work.k.used);
        } else {
          continue_sums(first_block + m, m);
        }
        ds_.advance();
      }
      ++head;
      first_block += params_.query_blocks;
    }
    if constexpr (!C.shares_keys) {
      ptx::bar_arrive(kLastRead, kWarpgroupSize * (kKeyWarpgroups + 1));
    }
  }

  __device__ __forceinline__ QueryState& state() const {
    return *reinterpret_cast<QueryState*>(smem_ + kPlan.query_state);
  }
  __device__ __forceinline__ float* sums_of(int block, int part) const { return part_sums<C>(params_, block, part); }
  __device__ __forceinline__ QueryGradientSemaphore semaphore_at(int block, int m, int part) const {
    return backward::semaphore_at(params_, state().order, block, m, part);
  }

  /// Adds one part of dS K to dq.
  __device__ __forceinline__ void add_part(int part, Part& dq) {
    ptx::wgmma_fence();
    multiply_keys<C, true>(dq, smem_, part, ds_.stage);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>(dq);
    if (part == query_gradient_parts(C) - 1) {
      arrive<C>(barriers_.handed_empty[ds_.stage]);
    }
  }

  /// A step that others follow.
  __device__ __forceinline__ void continue_sums(int block, int m) {
#pragma unroll
    for (int part = 0; part < query_gradient_parts(C); ++part) {
      announce(sums_of(block, part), semaphore_at(block, m, part));
      Part dq = {};
      add_part(part, dq);
      wait<C>(barriers_.staged_empty, staged_parity_ ^ 1);
      stage_sums(dq, smem_ + kPlan.dq);
      cptx::fence_proxy_async(cptx::space_shared);
      __syncwarp();
      arrive<C>(barriers_.staged_full[sender_]);
      staged_parity_ ^= 1;
      next_sender();
    }
  }

  /// Tells the next sender where its part goes, before that is there, so that it can wait for its turn.
  __device__ __forceinline__ void announce(float* sums, const QueryGradientSemaphore& semaphore) {
    if (threadIdx.x % kWarpgroupSize == 0) {
      state().staged[sender_] = {sums, semaphore};
      cptx::mbarrier_arrive(&barriers_.announced[sender_]);
    }
  }

  __device__ __forceinline__ void next_sender() { sender_ = sender_ + 1 == kSenders ? 0 : sender_ + 1; }

  /// A step that none follows: its products are added to the sums in the accumulators. `keys`: of the sequence.
  __device__ __forceinline__ void end_sums(int block, int head, int m, int keys) {
#pragma unroll
    for (int part = 0; part < query_gradient_parts(C); ++part) {
      Part dq = {};
      const bool first = state().order.first(m);
      if (!first) {
        if (threadIdx.x % kWarpSize == 0) {
          semaphore_at(block, m, part).template wait<C.debug>();
        }
        __syncwarp();
        load_sums(sums_of(block, part), dq);
      }
      add_part(part, dq);
      const QueryGradientPart<C> converted(dq, score::gradient_scale<C.rule>(params_, keys) * score_gradient_factor(C));
      if (!converted.finite) {
        semaphore_at(block, m, part).end(false);
      }
      int item = blockIdx.x;
      asm volatile("" : "+r"(item));  // computed anew, so that it takes no registers during the steps
      const Work work = work_of<C>(params_, item);
      converted.store(params_, work, work.sequence, head, QueryPart<C>(m, part));
      if (first && threadIdx.x % kWarpgroupSize == 0) {
        semaphore_at(block, m, part).end(true);
      }
    }
  }

  const Params& params_;
  unsigned char* smem_;
  Barriers<C>& barriers_;
  RingPosition<kScoreGradientStages> ds_;
  uint32_t staged_parity_ = 0;
  int sender_ = 0;  // who sends the next part
};

}  // namespace strobe::sm90::backward
