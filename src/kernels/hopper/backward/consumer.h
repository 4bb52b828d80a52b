// The consumer's side: each warpgroup holds dK and dV of 64 keys in registers and walks over the query blocks.
//
// One step, while dK of the step before may still run:
//   1. issue S^T = K Q^T and dP^T = V dO^T; P = exp2(S - LSE) under dP
//   2. issue dV += P^T dO; dS = P (dP - D) under it, to shared memory for the other warpgroups
//   3. meet them; issue dQ = dS K and dK += dS^T Q; when dQ is there, reduce it to global memory under dK
// So the tensor cores have work of this warpgroup's own in every phase.
#pragma once

#include "kernels/hopper/backward/barriers.h"
#include "kernels/hopper/backward/epilogue.h"
#include "kernels/hopper/backward/producer.h"
#include "kernels/hopper/backward/products.h"
#include "kernels/hopper/backward/query_gradient.h"
#include "kernels/hopper/backward/scores.h"

namespace strobe::hopper::backward {

template <BackwardConfig C>
class Consumer {
 public:
  using KeyGradient = float[C.head_dim / 2];
  using ValueGradient = float[C.head_dim_v / 2];
  using QueryGradient = float[query_gradient_columns(C) / 2];
  using Operand = uint32_t[C.block_m / 16][4];

  __device__ __forceinline__ Consumer(const TensorMaps& maps, const BackwardParams& params, unsigned char* smem,
                                      Barriers<C>& barriers, int warpgroup)
      : maps_(maps), params_(params), smem_(smem), barriers_(barriers), warpgroup_(warpgroup) {}

  /// Every item of this CTA.
  __device__ __forceinline__ void run() {
    ptx::griddepcontrol_wait();
    int item = blockIdx.x;
    do {
      const Work work = work_of<C>(params_, item);
      if (work.steps() == 0) {
        store_no_gradients<C>(params_, work, warpgroup_);
      } else {
        one_item(work);
      }
      item += gridDim.x;
    } while (C.persistent && item < params_.items);
  }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);
  static constexpr int kTileFloats = C.block_m * C.head_dim;
  static_assert(C.do_stages == kScoreGradientStages);  // dS takes the stage of dO

  __device__ __forceinline__ void one_item(const Work& work) {
    KeyGradient dk;
    ValueGradient dv;
    all_steps(dk, dv, work);
    store_gradients<C>(maps_, params_, smem_, kv_stage(), work, warpgroup_, dk, dv);
    if (C.persistent && threadIdx.x % kWarpgroupSize == 0) {
      cptx::mbarrier_arrive(&barriers_.kv_empty[kv_stage()]);
    }
    kv_.advance();
  }

  __device__ __forceinline__ void all_steps(KeyGradient& dk, ValueGradient& dv, const Work& work) {
    wait(barriers_.k_full[kv_stage()], kv_.parity);
    wait(barriers_.v_full[kv_stage()], kv_.parity);
    int m = work.m_begin;
    float* sums = query_gradient_sums<C>(params_, work.batch, work.head_kv * params_.heads_per_kv, warpgroup_) +
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
    if constexpr (C.defer_dk) {
      ptx::wgmma_wait_group<0>(dk);
      release(barriers_.q_empty[before(q_.stage)]);
    }
  }

  template <bool masked>
  __device__ __forceinline__ void step(KeyGradient& dk, ValueGradient& dv, const Work& work, int m, float* sums) {
    Operand p, ds;
    scores_and_gradients<masked>(dv, work, m, p, ds);
    store_score_gradients<C>(ds, smem_ + kPlan.ds + do_.stage * kPlan.ds_bytes, warpgroup_);
    cptx::fence_proxy_async(cptx::space_shared);
    ptx::wgmma_fence();
    if constexpr (!C.early_dv) {
      issue_value_gradients(dv, p);
    }
    ptx::bar_sync(kScoreGradient, kWarpgroupSize * C.consumer_warpgroups);
    QueryGradient dq;
    issue_query_gradients(dq);
    issue_key_gradients(dk, ds);
    ptx::wgmma_wait_group<1>(dq);
    ptx::tie(dv);
    release(barriers_.do_empty[do_.stage]);
    reduce_query_gradients(sums, dq);
    if constexpr (!C.defer_dk) {
      ptx::wgmma_wait_group<0>(dk);
      release(barriers_.q_empty[q_.stage]);
    }
    q_.advance();
    do_.advance();
  }

  // -- Its parts ------------------------------------------------------------------------------------------------------

  /// P and dS as operands; dV may be on its way already.
  template <bool masked>
  __device__ __forceinline__ void scores_and_gradients(ValueGradient& dv, const Work& work, int m, Operand& p,
                                                       Operand& ds) {
    Scores<C> s, dp;
    wait(barriers_.q_full[q_.stage], q_.parity);
    ptx::wgmma_fence();
    issue_scores(s);
    wait(barriers_.do_full[do_.stage], do_.parity);
    issue_probability_gradients(dp);
    ptx::wgmma_wait_group<1>(s);
    if (C.defer_dk && started_) {
      release(barriers_.q_empty[before(q_.stage)]);
    }
    if constexpr (masked) {
      hide<C>(params_, key_first(work), m * C.block_m, s, kMinusInfinity);
    }
    probabilities<C>(s, rows_of(kPlan.lse, q_.stage), params_.scale_log2);
    if constexpr (C.early_dv) {
      to_operand<C.element>(p, s);
      ptx::wgmma_fence();
      issue_value_gradients(dv, p);
      ptx::wgmma_wait_group<1>(dp);
    } else {
      ptx::wgmma_wait_group<0>(dp);
      to_operand<C.element>(p, s);
    }
    if constexpr (masked) {
      hide<C>(params_, key_first(work), m * C.block_m, dp, 0.0F);
    }
    differentiate<C>(s, dp, rows_of(kPlan.d_sum, do_.stage));
    to_operand<C.element>(ds, s);
  }

  __device__ __forceinline__ int kv_stage() const { return C.kv_stages == 1 ? 0 : kv_.stage; }

  /// The stage of Q that was filled before this one.
  __device__ __forceinline__ static int before(int stage) { return stage == 0 ? C.q_stages - 1 : stage - 1; }

  __device__ __forceinline__ int key_first(const Work& work) const {
    return work.n * block_n(C) + warpgroup_ * kRowsPerWarpgroup;
  }

  __device__ __forceinline__ const float* rows_of(int offset, int stage) const {
    return reinterpret_cast<const float*>(smem_ + offset + stage * kPlan.rows_bytes);
  }

  /// The warpgroup's 64 rows of a tile of K or V.
  __device__ __forceinline__ Descriptor own_keys(int offset) const {
    return descriptor_k_major(smem_ + offset) + warpgroup_ * (kRowsPerWarpgroup * kPanelRowBytes >> 4);
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
    constexpr bool kByRows = query_gradient_by_rows(C);
    constexpr int kPanel = block_n(C) * kPanelRowBytes >> 4;
    constexpr int kQueryPanels = kByRows ? 1 : 0;
    constexpr int kKeyPanels = kByRows ? 0 : query_gradient_columns(C) / kPanelColumns;
    multiply_keys<C>(dq,
                     descriptor_mn_major(smem_ + kPlan.ds, block_n(C)) + do_.stage * (kPlan.ds_bytes >> 4) +
                         warpgroup_ * kQueryPanels * kPanel,
                     descriptor_mn_major(smem_ + kPlan.k, block_n(C)) + kv_stage() * (kPlan.k_bytes >> 4) +
                         warpgroup_ * kKeyPanels * kPanel);
    ptx::wgmma_commit_group();
  }

  const TensorMaps& maps_;
  const BackwardParams& params_;
  unsigned char* smem_;
  Barriers<C>& barriers_;
  const int warpgroup_;
  RingPosition<C.q_stages> q_;
  RingPosition<C.do_stages> do_;  // and of dS
  RingPosition<C.kv_stages> kv_;
  bool started_ = false;  // whether dK and dV hold sums, and dK of the step before may run on
};

}  // namespace strobe::hopper::backward
