// SPDX-License-Identifier: Apache-2.0
// The first of two consumer warpgroups by roles computes P, hands it to the second and holds dV.
#pragma once

#include "kernels/sm90/backward/bias_ring.h"
#include "kernels/sm90/backward/products.h"
#include "kernels/sm90/backward/roles/role.h"
#include "kernels/sm90/backward/scores.h"

namespace strobe::sm90::backward {

/// The first role: P of every step, and dV.
template <Config C>
class ProbabilityRole : Role<C> {
  using Base = Role<C>;
  using Base::barriers_, Base::params_, Base::smem_, Base::q_, Base::do_, Base::p_, Base::ds_, Base::started_,
      Base::kPlan;

 public:
  using Base::Base;

  /// `has_large_rows`: some of the queries may be rows of a large LSE.
  template <bool has_large_rows>
  __device__ __forceinline__ void run(const Work& work, float (&dv)[C.head_dim_v / 2]) {
    wait<C>(barriers_.k_full, 0);
    this->for_each_step(work, [&](int head, int m) __attribute__((always_inline)) {
      Scores<C> s;
      Operand<C> p;
      const int head_in_batch = work.sequence * params_.heads + work.template first_query_head<C>(params_) + head;
      ScoreBlock<C> block(params_, work, head_in_batch, work.n * block_n(C), m);
      compute_probabilities<has_large_rows>(block, m, s, p);
      hand_over(block, s, p);
      add_to_gradients(dv, p);
    });
  }

 private:
  /// P of query block m in `s`, and of softcapped scores as operand `p`, where `s` becomes P times softcap's
  /// derivative.
  template <bool has_large_rows>
  __device__ __forceinline__ void compute_probabilities(ScoreBlock<C>& block, int m, Scores<C>& s, Operand<C>& p) {
    StepBias<C> bias;
    if constexpr (C.bias_stages == 0) {
      bias.fetch(block);
    }
    RowNumbers<C> lse_log2;
    issue_scores(s, lse_log2);
    block.find_text(smem_ + kPlan.text);
    ptx::wgmma_wait_group<0>(s);
    const bool masked = (hides_by_text(C.rule) && !block.shown) || !block.work.template sees_all<C.rule>(m);
    if constexpr (has_hi_lo_lse(C)) {
      difference_probabilities<C>(block, masked, has_large_rows && block.has_large_rows(), s);
    } else {
      if constexpr (C.bias_stages > 0) {
        SharedBias<C> shared = bias_.arrived(block, smem_, barriers_, 0);
        probabilities<C>(block, masked, has_large_rows && block.has_large_rows(), s, p, lse_log2, shared);
      } else {
        probabilities<C>(block, masked, has_large_rows && block.has_large_rows(), s, p, lse_log2, bias);
      }
      __syncwarp();  // all lanes have read LSE
    }
    arrive<C>(barriers_.q_empty[q_.stage]);
  }

  /// S^T = K Q^T, less LSE where the tensor cores subtract it; else LSE comes in `lse_log2`.
  __device__ __forceinline__ void issue_scores(Scores<C>& s, RowNumbers<C>& lse_log2) {
    wait<C>(barriers_.q_full[q_.stage], q_.parity);
    ptx::wgmma_fence();
    const Descriptor queries = descriptor_k_major(smem_ + kPlan.q) + q_.stage * (kPlan.q_bytes >> 4);
    if constexpr (has_hi_lo_lse(C)) {
      multiply_transposed_and_add<C, C.head_dim>(
          s, descriptor_k_major(smem_ + kPlan.k), queries,
          descriptor_of_rows(smem_ + kPlan.lse) + q_.stage * (kPlan.lse_bytes >> 4));
      ptx::wgmma_commit_group();
    } else {
      multiply_transposed<C, C.head_dim>(s, descriptor_k_major(smem_ + kPlan.k), queries);
      ptx::wgmma_commit_group();
      load_row_numbers<C>(lse_log2, this->rows_of(kPlan.lse, kPlan.lse_bytes, q_.stage));
      scale_probabilities<C>(lse_log2);
    }
  }

  /// P to the second role, which may see what is dropped by its sign, and as operand of dV, without what is dropped.
  __device__ __forceinline__ void hand_over(const ScoreBlock<C>& block, const Scores<C>& s, Operand<C>& p) {
    if constexpr (C.rule.dropout) {
      const score::DropoutSlices<C.block_m> slices = draw_dropout<C.block_m>(block, 0);
      store_halves(s, [&](uint32_t halves, int i, int j) {
        return marks_dropped(C.rule) ? score::mark_dropped(halves, slices, i, j) : halves;
      });
      to_operand(p, s);
      drop<C>(p, slices);
    } else {
      store_halves(s, [](uint32_t halves, int, int) { return halves; });
      to_operand(p, s);
    }
    if constexpr (C.bias_stages > 0) {  // which has arrived, as P was stored
      bias_.release(barriers_);
    }
  }

  /// dV += P^T dO.
  __device__ __forceinline__ void add_to_gradients(float (&dv)[C.head_dim_v / 2], const Operand<C>& p) {
    wait<C>(barriers_.do_full[do_.stage], do_.parity);
    ptx::wgmma_fence();
    accumulate_keys<C>(dv, p, descriptor_mn_major(smem_ + kPlan.d_o, C.block_m) + do_.stage * (kPlan.do_bytes >> 4),
                       started_ ? 1 : 0);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>(dv);
    arrive<C>(barriers_.do_empty[do_.stage]);
  }

  /// P as operand, where probabilities() has not made it one.
  __device__ __forceinline__ static void to_operand(Operand<C>& p, const Scores<C>& s) {
    if constexpr (!has_slope(C.rule)) {
      score::to_operand<C.rule.element>(p, s);
    }
  }

  /// P as float16 to shared memory. `mark(halves, i, j)`: what becomes of the pair at [i][j] of an operand.
  template <typename Mark>
  __device__ __forceinline__ void store_halves(const Scores<C>& p, const Mark& mark) {
    wait<C>(barriers_.handed_empty[p_.stage], p_.parity ^ 1);
    uint4* chunks = this->exchanged(p_.stage);
#pragma unroll
    for (int i = 0; i < C.block_m / 16; ++i) {
      const auto pair = [&](int j) { return mark(to_halves<C>(p[8 * i + 2 * j], p[8 * i + 2 * j + 1]), i, j); };
      chunks[i * kWarpgroupSize] = {pair(0), pair(1), pair(2), pair(3)};
    }
    __syncwarp();
    arrive<C>(barriers_.handed_full[p_.stage]);
  }

  BiasRing<C> bias_;
};

}  // namespace strobe::sm90::backward
