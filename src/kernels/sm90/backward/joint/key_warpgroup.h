// SPDX-License-Identifier: Apache-2.0
// The joint design's keys: each of two warpgroups holds dK and dV of 64 keys in registers and walks over the query
// blocks. They share nothing but the tensor cores: what one computes between its products is done under the products
// of the other and of the queries' warpgroup.
//
// One step:
//   1. S^T = K Q^T; P = exp2(S - LSE), in half the registers
//   2. dP^T = V dO^T; dS = P (dP - D), to shared memory for the queries' warpgroup
//   3. dV += P^T dO, dK += dS^T Q
#pragma once

#include "kernels/sm90/backward/barriers.h"
#include "kernels/sm90/backward/bias_ring.h"
#include "kernels/sm90/backward/epilogue.h"
#include "kernels/sm90/backward/joint/halves.h"
#include "kernels/sm90/backward/products.h"
#include "kernels/sm90/backward/variants.h"
#include "kernels/sm90/backward/visible_blocks.h"

namespace strobe::sm90::backward {

inline constexpr int kEitherWarpgroup = -1;

/// `number`: of the warpgroup; or either, where it need not be fast, for there to be less code.
template <Config C, int number>
class KeyWarpgroup {
 public:
  __device__ __forceinline__ KeyWarpgroup(const TensorMaps& maps, const Params& params, unsigned char* smem,
                                          Barriers<C>& barriers)
      : maps_(maps), params_(params), smem_(smem), barriers_(barriers) {}

  /// False where some queries are rows of a large LSE: then run_large() is to be called. It has a loop of its own, as
  /// whatever a step asks delays its products.
  __device__ __forceinline__ bool run() {
    ptx::griddepcontrol_wait();
    const Work work = work_of<C>(params_, blockIdx.x);
    if (VisibleSteps<C>(params_, work).none()) {
      store_no_gradients<C>(params_, work, warpgroup());
      return true;
    }
    if (score::has_large_rows<C.rule>(params_, work.sequence, work.template first_query_head<C>(params_),
                                      work.template query_heads<C>(params_))) {
      return false;
    }
    run_steps<false>(work);
    return true;
  }
  __device__ __forceinline__ void run_large() { run_steps<true>(work_of<C>(params_, blockIdx.x)); }

 private:
  __device__ __forceinline__ static int warpgroup() {
    if constexpr (number == kEitherWarpgroup) {
      return static_cast<int>(__shfl_sync(kFullWarp, threadIdx.x / kWarpgroupSize, 0)) - 1;
    } else {
      return number;
    }
  }

  template <bool has_large_rows>
  __device__ __forceinline__ void run_steps(const Work& work) {
    KeyGradient dk;
    ValueGradient dv;
    all_steps<has_large_rows>(dk, dv, work);
    int item = blockIdx.x;
    asm volatile("" : "+r"(item));  // computed anew, so that it takes no registers during the steps
    store_gradients<C>(maps_, params_, smem_, work_of<C>(params_, item), warpgroup(), dk, dv);
  }

  using KeyGradient = float[C.head_dim / 2];
  using ValueGradient = float[C.head_dim_v / 2];
  static_assert(joint_takes(C.rule, C.head_dim, C.head_dim_v, C.block_m));
  static constexpr SmemPlan kPlan = smem_plan(C);

  template <bool has_large_rows>
  __device__ __forceinline__ void all_steps(KeyGradient& dk, ValueGradient& dv, const Work& work) {
    wait<C>(barriers_.k_full, 0);
    wait<C>(barriers_.v_full, 0);
    bool started = false;
    int heads = work.template query_heads<C>(params_);
    VisibleSteps<C> steps(params_, work);
    do {  // not for: a loop that may be empty takes ptxas more registers
      if constexpr (C.rule.block_mask != 0) {
        const int group = work.template query_heads<C>(params_) - heads;
        for (int m = steps.from(group, work.m_begin); m < work.m_end; m = steps.from(group, m + 1)) {
          one_step<has_large_rows>(dk, dv, work, heads, m, started);
        }
      } else {
        for (int m = work.template first<C>(); work.template goes_on<C>(m); m += work.template step<C>()) {
          one_step<has_large_rows>(dk, dv, work, heads, m, started);
        }
      }
    } while (--heads > 0);
  }

  /// `left`: as of head_in_batch().
  template <bool has_large_rows>
  __device__ __forceinline__ void one_step(KeyGradient& dk, ValueGradient& dv, const Work& work, int left, int m,
                                           bool& started) {
    ScoreBlock<C> block(params_, work, head_in_batch(work, left), key_first(work), m);
    const bool masked = !work.sees_all<C.rule>(m) || (hides_by_text(C.rule) && !block.shown);
    Operand<C> halves, p, ds;
    compute_probabilities<has_large_rows>(block, masked, p, halves);
    compute_score_gradients(halves, p, ds);
    hand_over(ds);
    add_to_gradients(dk, dv, p, ds, started);
    started = true;
    q_.advance();
    do_.advance();
    ds_.advance();
  }

  template <bool has_large_rows>
  __device__ __forceinline__ void compute_probabilities(ScoreBlock<C>& block, bool masked, Operand<C>& p,
                                                        Operand<C>& halves) {
    Scores<C> s;
    StepBias<C> bias;
    if constexpr (C.bias_stages == 0) {
      bias.fetch(block);
    }
    RowNumbers<C> lse_log2;
    const Descriptor queries = descriptor_k_major(smem_ + kPlan.q) + q_.stage * (kPlan.q_bytes >> 4);
    wait<C>(barriers_.q_full[q_.stage], q_.parity);
    ptx::wgmma_fence();
    if constexpr (has_hi_lo_lse(C)) {
      multiply_transposed_and_add<C, C.head_dim>(s, own_keys(kPlan.k), queries,
                                                 rows(kPlan.lse) + q_.stage * (kPlan.lse_bytes >> 4));
    } else {
      multiply_transposed<C, C.head_dim>(s, own_keys(kPlan.k), queries);
    }
    ptx::wgmma_commit_group();
    if constexpr (!has_hi_lo_lse(C)) {
      load_row_numbers<C>(lse_log2, reinterpret_cast<const float*>(smem_ + kPlan.lse + q_.stage * kPlan.lse_bytes));
    }
    block.find_text(smem_ + kPlan.text + warpgroup() * kWarpsPerWarpgroup * text_bytes(C));
    ptx::wgmma_wait_group<0>(s);
    const bool large = has_large_rows && block.has_large_rows();
    if constexpr (C.bias_stages > 0) {
      SharedBias<C> shared = bias_.arrived(block, smem_, barriers_, warpgroup());
      probabilities_in_halves<C>(block, masked, large, s, lse_log2, shared, p, halves);
      __syncwarp();
      bias_.release(barriers_);
    } else {
      probabilities_in_halves<C>(block, masked, large, s, lse_log2, bias, p, halves);
    }
  }

  __device__ __forceinline__ void compute_score_gradients(const Operand<C>& halves, Operand<C>& p, Operand<C>& ds) {
    Scores<C> dp;
    wait<C>(barriers_.do_full[do_.stage], do_.parity);
    ptx::wgmma_fence();
    const Descriptor output_gradients = descriptor_k_major(smem_ + kPlan.d_o) + do_.stage * (kPlan.do_bytes >> 4);
    RowNumbers<C> d_sum;
    if constexpr (has_hi_lo_d(C)) {
      multiply_transposed_and_add<C, C.head_dim_v>(dp, own_keys(kPlan.v), output_gradients,
                                                   rows(kPlan.d_sum) + do_.stage * (kPlan.d_bytes >> 4));
    } else {
      multiply_transposed<C, C.head_dim_v>(dp, own_keys(kPlan.v), output_gradients);
    }
    ptx::wgmma_commit_group();
    if constexpr (!has_hi_lo_d(C)) {
      load_row_numbers<C>(d_sum, reinterpret_cast<const float*>(smem_ + kPlan.d_sum + do_.stage * kPlan.d_bytes));
      scale_sums<C>(d_sum, params_.score.dropout.keep_probability);
    }
    ptx::wgmma_wait_group<0>(dp);
    score_gradients_of_halves<C>(halves, dp, d_sum, p, ds);
  }

  /// dS to the queries' warpgroup.
  __device__ __forceinline__ void hand_over(const Operand<C>& ds) {
    wait<C>(barriers_.handed_empty[ds_.stage], ds_.parity ^ 1);
    store_score_gradients<C>(ds, smem_ + kPlan.ds + ds_.stage * kPlan.ds_bytes, warpgroup());
    cptx::fence_proxy_async(cptx::space_shared);
    __syncwarp();
    arrive<C>(barriers_.handed_full[ds_.stage]);
  }

  __device__ __forceinline__ void add_to_gradients(KeyGradient& dk, ValueGradient& dv, const Operand<C>& p,
                                                   const Operand<C>& ds, bool started) {
    ptx::wgmma_fence();
    accumulate_keys<C>(dv, p, descriptor_mn_major(smem_ + kPlan.d_o, C.block_m) + do_.stage * (kPlan.do_bytes >> 4),
                       started ? 1 : 0);
    accumulate_keys<C>(dk, ds, descriptor_mn_major(smem_ + kPlan.q, C.block_m) + q_.stage * (kPlan.q_bytes >> 4),
                       started ? 1 : 0);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>(dv);
    ptx::tie(dk);
    arrive<C>(barriers_.do_empty[do_.stage]);
    arrive<C>(barriers_.q_empty[q_.stage]);
  }

  /// The query head when `left` of the key head's are left.
  __device__ __forceinline__ int head_in_batch(const Work& work, int left) const {
    asm volatile("" : "+r"(left));  // so that what follows from it does not stay in registers between steps
    if constexpr (C.shares_keys) {
      return work.sequence * params_.heads + work.template first_query_head<C>(params_) +
             work.template query_heads<C>(params_) - left;
    }
    return work.sequence * params_.heads + (work.head_kv + 1) * params_.heads_per_kv - left;
  }

  __device__ __forceinline__ static int key_first(const Work& work) {
    return work.n * block_n(C) + warpgroup() * kRowsPerWarpgroup;
  }

  /// The warpgroup's 64 rows of K or V.
  __device__ __forceinline__ Descriptor own_keys(int offset) const {
    return descriptor_k_major(smem_ + offset) + warpgroup() * (kRowsPerWarpgroup * kPanelRowBytes >> 4);
  }

  __device__ __forceinline__ RowsDescriptor rows(int offset) const { return descriptor_of_rows(smem_ + offset); }

  const TensorMaps& maps_;
  const Params& params_;
  unsigned char* smem_;
  Barriers<C>& barriers_;
  RingPosition<C.q_stages> q_;
  RingPosition<C.do_stages> do_;
  RingPosition<kScoreGradientStages> ds_;
  BiasRing<C> bias_;
};

}  // namespace strobe::sm90::backward
