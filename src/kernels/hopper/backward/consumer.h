// SPDX-License-Identifier: Apache-2.0
// The consumer's side: each warpgroup holds dK and dV of 64 keys in registers and walks over the query blocks.
//
// One step:
//   1. in turn: issue S^T = K Q^T and dP^T = V dO^T; P = exp2(S - LSE) under dP
//   2. dS = P (dP - D), to shared memory for the other warpgroups, too
//   3. issue dV += P^T dO; meet them; issue dQ = dS K and dK += dS^T Q; when dQ is there, send it on its way under dK
// A thread waits at a WGMMA until the tensor cores take it, so little of its own can be done under its own products:
// what is computed in 2 is done under the products of the other warpgroup.
#pragma once

#include "kernels/hopper/backward/barriers.h"
#include "kernels/hopper/backward/epilogue.h"
#include "kernels/hopper/backward/producer.h"
#include "kernels/hopper/backward/products.h"
#include "kernels/hopper/backward/query_gradient.h"
#include "kernels/hopper/backward/scores.h"

namespace strobe::hopper::backward {

template <Config C, int warpgroup>
class Consumer {
 public:
  using KeyGradient = float[C.head_dim / 2];
  using ValueGradient = float[C.head_dim_v / 2];
  using QueryGradient = float[query_gradient_columns(C) / 2];

  __device__ __forceinline__ Consumer(const TensorMaps& maps, const Params& params, unsigned char* smem,
                                      Barriers<C>& barriers)
      : maps_(maps), params_(params), smem_(smem), barriers_(barriers) {}

  /// Every item of this CTA.
  __device__ __forceinline__ void run() {
    ptx::griddepcontrol_wait();
    int item = blockIdx.x;
    do {
      const Work work = work_of<C>(params_, item);
      if (work.steps() == 0) {
        store_no_gradients<C>(params_, work, warpgroup);
      } else {
        one_item(work, item);
      }
      item += gridDim.x;
    } while (C.persistent && item < params_.items);
  }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);
  static_assert(query_gradient_columns(C) % kPanelColumns == 0 && (!C.turns || C.consumer_warpgroups == 2));
  static constexpr int kTileFloats = C.block_m * C.head_dim;

  __device__ __forceinline__ void one_item(const Work& work, int item) {
    KeyGradient dk;
    ValueGradient dv;
    all_steps(dk, dv, work);
    asm volatile("" : "+r"(item));  // computed anew, so that it takes no registers during the steps
    store_gradients<C>(maps_, params_, smem_, kv_stage(), work_of<C>(params_, item), warpgroup, dk, dv);
    if (C.persistent && threadIdx.x % kWarpgroupSize == 0) {
      cptx::mbarrier_arrive(&barriers_.kv_empty[kv_stage()]);
    }
    kv_.advance();
  }

  __device__ __forceinline__ void all_steps(KeyGradient& dk, ValueGradient& dv, const Work& work) {
    wait(barriers_.k_full[kv_stage()], kv_.parity);
    wait(barriers_.v_full[kv_stage()], kv_.parity);
    int m = work.m_begin;
    int head = work.head_kv * params_.heads_per_kv;
    float* sums = query_gradient_sums<C>(params_, work.sequence, head, warpgroup,
                                         C.staged_dq ? 0 : threadIdx.x % kWarpgroupSize * 4) +
                  static_cast<long long>(m) * kTileFloats;
    started_ = false;
    for (int remaining = work.steps() * params_.heads_per_kv; remaining > 0; --remaining) {
      if (work.sees_all<C>(m)) {
        step<false>(dk, dv, work, head, m, sums);
      } else {
        step<true>(dk, dv, work, head, m, sums);
      }
      sums += kTileFloats;
      if (++m == work.m_end) {
        m = work.m_begin;
        ++head;
        sums += static_cast<long long>(params_.query_blocks - work.steps()) * kTileFloats;
      }
    }
  }

  template <bool masked>
  __device__ __forceinline__ void step(KeyGradient& dk, ValueGradient& dv, const Work& work, int head, int m,
                                       float* sums) {
    Operand<C> p, ds;
    scores_and_gradients<masked>(work, head, m, p, ds);
    store_score_gradients<C>(ds, smem_ + kPlan.ds + ds_.stage * kPlan.ds_bytes, warpgroup);
    cptx::fence_proxy_async(cptx::space_shared);
    ptx::wgmma_fence();
    issue_value_gradients(dv, p);
    ptx::bar_sync(kScoreGradient, kWarpgroupSize * C.consumer_warpgroups);
    QueryGradient dq;
    issue_query_gradients(dq);
    issue_key_gradients(dk, ds);
    ptx::wgmma_wait_group<2>(dv);
    arrive_once(barriers_.do_empty[do_.stage]);
    ptx::wgmma_wait_group<1>(dq);
    if constexpr (C.staged_dq) {
      stage_query_gradients(sums, dq, smem_ + kPlan.dq + warpgroup * (kTileFloats * 4 / C.consumer_warpgroups),
                            kWarpgroup + warpgroup);
    } else {
      reduce_query_gradients(sums, dq);
    }
    ptx::wgmma_wait_group<0>(dk);
    arrive_once(barriers_.q_empty[q_.stage]);
    q_.advance();
    do_.advance();
    ds_.advance();
  }

  // -- Its parts ------------------------------------------------------------------------------------------------------

  /// P and dS as operands.
  template <bool masked>
  __device__ __forceinline__ void scores_and_gradients(const Work& work, int head, int m, Operand<C>& p,
                                                       Operand<C>& ds) {
    Scores<C> s, dp;
    const ScoreBlock<C> block(params_, work, head, key_first(work), m);
    wait(barriers_.q_full[q_.stage], q_.parity);
    wait_for_turn();
    ptx::wgmma_fence();
    issue_scores(s);
    wait(barriers_.do_full[do_.stage], do_.parity);
    issue_probability_gradients(dp);
    pass_turn();
    RowNumbers<C> lse_log2, d_sum;
    load_row_numbers<C>(lse_log2, rows_of(kPlan.lse, q_.stage));
    ptx::wgmma_wait_group<1>(s);
    probabilities<C>(block, masked, s, p, lse_log2);
    load_row_numbers<C>(d_sum, rows_of(kPlan.d_sum, do_.stage));
    ptx::tie(s);
    // Passes at once, and ends a basic block: else ptxas moves the wait for dP above the exponentials.
    wait(barriers_.q_full[q_.stage], q_.parity);
    ptx::wgmma_wait_group<0>(dp);
    to_operands<C>(p, ds, s, dp, d_sum);
  }

  __device__ __forceinline__ static void wait_for_turn() {
    if constexpr (C.turns && warpgroup > 0) {
      ptx::bar_sync(kTurn, 2 * kWarpgroupSize);
    }
  }
  __device__ __forceinline__ static void pass_turn() {
    if constexpr (C.turns && warpgroup == 0) {
      ptx::bar_arrive(kTurn, 2 * kWarpgroupSize);
    }
  }

  __device__ __forceinline__ int kv_stage() const { return C.kv_stages == 1 ? 0 : kv_.stage; }

  __device__ __forceinline__ int key_first(const Work& work) const {
    return work.n * block_n(C) + warpgroup * kRowsPerWarpgroup;
  }

  __device__ __forceinline__ const float* rows_of(int offset, int stage) const {
    return reinterpret_cast<const float*>(smem_ + offset + stage * kPlan.rows_bytes);
  }

  /// The warpgroup's 64 rows of a tile of K or V.
  __device__ __forceinline__ Descriptor own_keys(int offset) const {
    return descriptor_k_major(smem_ + offset) + warpgroup * (kRowsPerWarpgroup * kPanelRowBytes >> 4);
  }

  __device__ __forceinline__ void issue_scores(Scores<C>& s) {
    multiply_transposed<C, C.head_dim>(s, own_keys(kPlan.k + kv_stage() * kPlan.k_bytes),
                                       descriptor_k_major(smem_ + kPlan.q) + q_.stage * (kPlan.q_bytes >> 4));
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void issue_probability_gradients(Scores<C>& dp) {
    multiply_transposed<C, C.head_dim_v>(dp, own_keys(kPlan.v + kv_stage() * kPlan.v_bytes),
                                         descriptor_k_major(smem_ + kPlan.d_o) + do_.stage * (kPlan.do_bytes >> 4));
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void issue_value_gradients(ValueGradient& dv, const Operand<C>& p) {
    accumulate_keys<C>(dv, p, descriptor_mn_major(smem_ + kPlan.d_o, C.block_m) + do_.stage * (kPlan.do_bytes >> 4),
                       started_ ? 1 : 0);
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void issue_key_gradients(KeyGradient& dk, const Operand<C>& ds) {
    accumulate_keys<C>(dk, ds, descriptor_mn_major(smem_ + kPlan.q, C.block_m) + q_.stage * (kPlan.q_bytes >> 4),
                       started_ ? 1 : 0);
    ptx::wgmma_commit_group();
    started_ = true;
  }

  __device__ __forceinline__ void issue_query_gradients(QueryGradient& dq) {
    constexpr int kPanel = block_n(C) * kPanelRowBytes;
    constexpr int kQueries = query_gradient_by_rows(C) ? warpgroup * kPanel : 0;
    constexpr int kColumns =
        query_gradient_by_rows(C) ? 0 : warpgroup * query_gradient_columns(C) / kPanelColumns * kPanel;
    multiply_keys<C>(dq,
                     descriptor_mn_major(smem_ + kPlan.ds + kQueries, block_n(C)) + ds_.stage * (kPlan.ds_bytes >> 4),
                     descriptor_mn_major(smem_ + kPlan.k + kColumns, block_n(C)) + kv_stage() * (kPlan.k_bytes >> 4));
    ptx::wgmma_commit_group();
  }

  const TensorMaps& maps_;
  const Params& params_;
  unsigned char* smem_;
  Barriers<C>& barriers_;
  RingPosition<C.q_stages> q_;
  RingPosition<C.do_stages> do_;
  RingPosition<kScoreGradientStages> ds_;
  RingPosition<C.kv_stages> kv_;
  bool started_ = false;  // whether dK and dV hold sums
};

}  // namespace strobe::hopper::backward
