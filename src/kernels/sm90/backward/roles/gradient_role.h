// SPDX-License-Identifier: Apache-2.0
// The second of two consumer warpgroups by roles takes P from the first, computes dS, sends it to global memory and
// holds dK.
#pragma once

#include "kernels/sm90/backward/products.h"
#include "kernels/sm90/backward/roles/role.h"
#include "kernels/sm90/backward/roles/score_gradients.h"

namespace strobe::sm90::backward {

/// The second role: dS of every step, and dK.
template <Config C>
class GradientRole : Role<C> {
  using Base = Role<C>;
  using Base::barriers_, Base::params_, Base::smem_, Base::q_, Base::do_, Base::p_, Base::ds_, Base::started_,
      Base::kPlan;

 public:
  using Base::Base;

  __device__ __forceinline__ void run(const Work& work, float (&dk)[C.head_dim / 2]) {
    wait<C>(barriers_.v_full, 0);
    this->for_each_step(work, [&](int head, int m) __attribute__((always_inline)) {
      Scores<C> dp;
      wait<C>(barriers_.do_full[do_.stage], do_.parity);
      ptx::wgmma_fence();
      multiply_transposed<C, C.head_dim_v>(dp, descriptor_k_major(smem_ + kPlan.v),
                                           descriptor_k_major(smem_ + kPlan.d_o) + do_.stage * (kPlan.do_bytes >> 4));
      ptx::wgmma_commit_group();
      RowNumbers<C> d_sum;
      load_row_numbers<C>(d_sum, this->rows_of(kPlan.d_sum, kPlan.d_bytes, do_.stage));
      scale_sums<C>(d_sum, kProbabilityScale * (C.rule.dropout ? params_.score.dropout.keep_probability : 1.0F));
      ptx::wgmma_wait_group<0>(dp);
      const int head_in_batch = work.sequence * params_.heads + work.template first_query_head<C>(params_) + head;
      take_over(ScoreBlock<C>(params_, work, head_in_batch, work.n * block_n(C), m), dp, d_sum);
      arrive<C>(barriers_.do_empty[do_.stage]);
      Operand<C> ds;
      score::to_operand<C.rule.element>(ds, dp);
      wait<C>(barriers_.q_full[q_.stage], q_.parity);
      ptx::wgmma_fence();
      accumulate_keys<C>(dk, ds, descriptor_mn_major(smem_ + kPlan.q, C.block_m) + q_.stage * (kPlan.q_bytes >> 4),
                         started_ ? 1 : 0);
      ptx::wgmma_commit_group();
      send(work, head, m, ds);
      ptx::wgmma_wait_group<0>(dk);
      arrive<C>(barriers_.q_empty[q_.stage]);
    });
    if (threadIdx.x % kWarpgroupSize == 0) {
      cptx::cp_async_bulk_wait_group_read(cptx::n32_t<0>{});
    }
  }

 private:
  /// dS = P (dP - D), in the place of dP; D comes scaled as P is.
  __device__ __forceinline__ void take_over(const ScoreBlock<C>& block, Scores<C>& dp, const RowNumbers<C>& d_sum) {
    wait<C>(barriers_.handed_full[p_.stage], p_.parity);
    const uint4* chunks = this->exchanged(p_.stage);
    for_each_kept_part<C>(block, [&](int i, const auto& kept) __attribute__((always_inline)) {
      score_gradients<C>(dp, d_sum, chunks[i * kWarpgroupSize], i, kept);
    });
    __syncwarp();
    arrive<C>(barriers_.handed_empty[p_.stage]);
  }

  /// dS to global memory, for the kernel that computes dQ.
  __device__ __forceinline__ void send(const Work& work, int head, int m, const Operand<C>& ds) {
    const bool elected = threadIdx.x % kWarpgroupSize == 0;
    unsigned char* tile = smem_ + kPlan.ds + ds_.stage * kPlan.ds_bytes;
    if (elected) {
      cptx::cp_async_bulk_wait_group_read(cptx::n32_t<C.ds_stages - 1>{});
    }
    ptx::bar_sync(kWarpgroup + 1, kWarpgroupSize);
    store_score_gradients<C>(ds, tile, 0);
    cptx::fence_proxy_async(cptx::space_shared);
    ptx::bar_sync(kWarpgroup + 1, kWarpgroupSize);
    if (elected) {
      send_score_gradients<C>(params_, work, C.shares_keys ? head + work.group_first : head, m, tile);
    }
  }
};

}  // namespace strobe::sm90::backward
