// SPDX-License-Identifier: Apache-2.0
// The scores of a pair's second CTA: dS of every step, of the P that the first hands over, for its sums of dK and to
// global memory.
#pragma once

#include "kernels/sm90/backward/roles/score_gradients.h"
#include "kernels/sm90/backward/wide/scores.h"

namespace strobe::sm90::backward {

template <Config C>
class WideGradients : WideScores<C, WideRole::gradients> {
  using Base = WideScores<C, WideRole::gradients>;
  using Base::params_, Base::barriers_, Base::handed_;

 public:
  using Base::Base;

  __device__ __forceinline__ void run(const Work& work) {
    this->take_keys();
    bool started = false;
    for_each_wide_step<C>(params_, work, [&](int head, int m) __attribute__((always_inline)) {
      Scores<C> dp;
      this->issue_product(dp, started);
      started = true;
      RowNumbers<C> d_sum;
      this->load_rows(d_sum);
      scale_sums<C>(d_sum, kProbabilityScale * (C.rule.dropout ? params_.score.dropout.keep_probability : 1.0F));
      this->release_rows();
      this->finish_product(dp);
      take_over(ScoreBlock<C>(params_, work, work.sequence * params_.heads + head, work.n * block_n(C), m), dp, d_sum);
      Operand<C> ds;
      score::to_operand<C.rule.element>(ds, dp);
      put_and_send(work, head, m, ds);
    });
    this->hand_on();
    if (threadIdx.x % kWarpgroupSize == 0) {
      cptx::cp_async_bulk_wait_group_read(cptx::n32_t<0>{});
    }
  }

 private:
  /// dS = P (dP - D), in the place of dP; D comes scaled as P is.
  __device__ __forceinline__ void take_over(const ScoreBlock<C>& block, Scores<C>& dp, const RowNumbers<C>& d_sum) {
    uint64_t& full = barriers_.handed_full[handed_.stage];
    if (threadIdx.x % kWarpgroupSize == 0) {
      expect(full, this->kPlan.scores_bytes);
    }
    wait<C>(full, handed_.parity);
    for_each_kept_part<C>(block, [&](int i, const auto& kept) __attribute__((always_inline)) {
      score_gradients<C>(dp, d_sum, *reinterpret_cast<const uint4*>(this->handed_chunk(i)), i, kept);
    });
    __syncwarp();
    arrive_at_peer<C.debug>(barriers_.handed_empty[handed_.stage], static_cast<int>(WideRole::probabilities));
    handed_.advance();
  }

  /// dS to the block that the sums read, and from there to global memory, for the kernel that computes dQ.
  __device__ __forceinline__ void put_and_send(const Work& work, int head, int m, const Operand<C>& ds) {
    const bool elected = threadIdx.x % kWarpgroupSize == 0;
    if (elected) {
      cptx::cp_async_bulk_wait_group_read(cptx::n32_t<C.ds_stages - 1>{});
    }
    this->wait_for_block();
    ptx::bar_sync(kQueries, kWarpgroupSize);
    this->put(ds);
    ptx::bar_sync(kQueries, kWarpgroupSize);
    if (elected) {
      const int of_group = head - work.head_kv * params_.heads_per_kv;
      send_score_gradients<C>(params_, work, of_group, m, this->block_of_scores());
    }
  }
};

}  // namespace strobe::sm90::backward
