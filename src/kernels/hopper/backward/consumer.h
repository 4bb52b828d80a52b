// The consumer's side: each warpgroup holds dK and dV of 64 keys in registers and walks over the query blocks; the last
// one computes dQ, too.
//
// One step:
//   1. issue S^T = K Q^T and dP^T = V dO^T; P = exp2(S - LSE) under dP
//   2. dS = P (dP - D), to shared memory for the last warpgroup
//   3. issue dV += P^T dO; last: dQ = dS K, when the others have written their dS, too; issue dK += dS^T Q
//   4. last: when dQ is there, reduce it to global memory under dK
// The others run ahead of the last warpgroup by up to a step: what it computes between its products is done under theirs.
#pragma once

#include "kernels/hopper/backward/barriers.h"
#include "kernels/hopper/backward/epilogue.h"
#include "kernels/hopper/backward/producer.h"
#include "kernels/hopper/backward/products.h"
#include "kernels/hopper/backward/query_gradient.h"
#include "kernels/hopper/backward/scores.h"

namespace strobe::hopper::backward {

template <BackwardConfig C, int warpgroup>
class Consumer {
 public:
  using KeyGradient = float[C.head_dim / 2];
  using ValueGradient = float[C.head_dim_v / 2];
  using QueryGradient = float[query_row_blocks(C)][C.head_dim / 2];
  using Operand = uint32_t[C.block_m / 16][4];

  __device__ __forceinline__ Consumer(const TensorMaps& maps, const BackwardParams& params, unsigned char* smem,
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
  static constexpr bool kLast = warpgroup == C.consumer_warpgroups - 1;
  static constexpr SmemPlan kPlan = smem_plan(C);
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
    float* sums = query_gradient_sums<C>(params_, work.batch, work.head_kv * params_.heads_per_kv) +
                  static_cast<long long>(m) * kTileFloats;
    started_ = false;
    for (int remaining = work.steps() * params_.heads_per_kv; remaining > 0; --remaining) {
      if (work.sees_all<C>(m)) {
        step<false>(dk, dv, work, m, sums);
      } else {
        step<true>(dk, dv, work, m, sums);
      }
      sums += kTileFloats;
      if (++m == work.m_end) {
        m = work.m_begin;
        sums += static_cast<long long>(params_.m_blocks - work.steps()) * kTileFloats;
      }
    }
  }

  template <bool masked>
  __device__ __forceinline__ void step(KeyGradient& dk, ValueGradient& dv, const Work& work, int m, float* sums) {
    Operand p, ds;
    scores_and_gradients<masked>(work, m, p, ds);
    if constexpr (!kLast) {
      wait(barriers_.ds_empty[ds_.stage], ds_.parity ^ 1);
    }
    store_score_gradients<C>(ds, smem_ + kPlan.ds + ds_.stage * kPlan.ds_bytes, warpgroup);
    cptx::fence_proxy_async(cptx::space_shared);
    __syncwarp();
    release(barriers_.ds_full[ds_.stage]);
    ptx::wgmma_fence();
    issue_value_gradients(dv, p);
    if constexpr (kLast) {
      wait(barriers_.ds_full[ds_.stage], ds_.parity);
      QueryGradient dq;
      issue_query_gradients(dq);
      issue_key_gradients(dk, ds);
      ptx::wgmma_wait_group<1>(dv);
      release(barriers_.do_empty[do_.stage]);
      release(barriers_.ds_empty[ds_.stage]);
#pragma unroll
      for (int block = 0; block < query_row_blocks(C); ++block) {
        ptx::tie(dq[block]);
        reduce_query_gradients(sums + block * (kRowsPerWarpgroup * C.head_dim), dq[block]);
      }
    } else {
      issue_key_gradients(dk, ds);
      ptx::wgmma_wait_group<1>(dv);
      release(barriers_.do_empty[do_.stage]);
    }
    ptx::wgmma_wait_group<0>(dk);
    release(barriers_.q_empty[q_.stage]);
    q_.advance();
    do_.advance();
    ds_.advance();
  }

  // -- Its parts ------------------------------------------------------------------------------------------------------

  /// P and dS as operands.
  template <bool masked>
  __device__ __forceinline__ void scores_and_gradients(const Work& work, int m, Operand& p, Operand& ds) {
    Scores<C> s, dp;
    wait(barriers_.q_full[q_.stage], q_.parity);
    ptx::wgmma_fence();
    issue_scores(s);
    wait(barriers_.do_full[do_.stage], do_.parity);
    issue_probability_gradients(dp);
    ptx::wgmma_wait_group<1>(s);
    if constexpr (masked) {
      hide<C>(params_, key_first(work), m * C.block_m, s, kMinusInfinity);
    }
    probabilities<C>(s, rows_of(kPlan.lse, q_.stage), params_.scale_log2);
    ptx::wgmma_wait_group<0>(dp);
    to_operand<C.element>(p, s);
    if constexpr (masked) {
      hide<C>(params_, key_first(work), m * C.block_m, dp, 0.0F);
    }
    differentiate<C>(s, dp, rows_of(kPlan.d_sum, do_.stage));
    to_operand<C.element>(ds, s);
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

  __device__ __forceinline__ void issue_value_gradients(ValueGradient& dv, const Operand& p) {
    accumulate_keys<C>(dv, p,
                       descriptor_mn_major(smem_ + kPlan.d_o, C.block_m) + do_.stage * (kPlan.do_bytes >> 4),
                       started_ ? 1 : 0);
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void issue_key_gradients(KeyGradient& dk, const Operand& ds) {
    accumulate_keys<C>(dk, ds, descriptor_mn_major(smem_ + kPlan.q, C.block_m) + q_.stage * (kPlan.q_bytes >> 4),
                       started_ ? 1 : 0);
    ptx::wgmma_commit_group();
    started_ = true;
  }

  __device__ __forceinline__ void issue_query_gradients(QueryGradient& dq) {
#pragma unroll
    for (int block = 0; block < query_row_blocks(C); ++block) {
      multiply_keys<C>(dq[block],
                       descriptor_mn_major(smem_ + kPlan.ds + block * block_n(C) * kPanelRowBytes, block_n(C)) +
                           ds_.stage * (kPlan.ds_bytes >> 4),
                       descriptor_mn_major(smem_ + kPlan.k, block_n(C)) + kv_stage() * (kPlan.k_bytes >> 4));
    }
    ptx::wgmma_commit_group();
  }

  const TensorMaps& maps_;
  const BackwardParams& params_;
  unsigned char* smem_;
  Barriers<C>& barriers_;
  RingPosition<C.q_stages> q_;
  RingPosition<C.do_stages> do_;
  RingPosition<kScoreGradientStages> ds_;
  RingPosition<C.kv_stages> kv_;
  bool started_ = false;  // whether dK and dV hold sums
};

}  // namespace strobe::hopper::backward
