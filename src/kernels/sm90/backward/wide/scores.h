// SPDX-License-Identifier: Apache-2.0
// What the warpgroups that compute scores of a pair have in common: the product of 64 keys and a step's queries, of
// which a part of the keys' columns lies in registers, and blocks of scores on their way to the sums.
#pragma once

#include "kernels/ptx/shared_memory.h"
#include "kernels/sm90/backward/products.h"
#include "kernels/sm90/backward/scores.h"
#include "kernels/sm90/backward/wide/steps.h"
#include "kernels/sm90/tile/lane_offset.h"

namespace strobe::sm90::backward {

template <Config C, WideRole role>
class WideScores {
 public:
  __device__ __forceinline__ WideScores(const Params& params, unsigned char* smem, WideBarriers<C>& barriers)
      : params_(params), smem_(smem), barriers_(barriers) {}

 protected:
  static constexpr WideSmemPlan kPlan = wide_smem_plan(C);
  static constexpr int kRegisterSteps = register_columns(C, role) / 16;
  static constexpr int kStepsPerPanel = kPanelColumns / 16;

  /// K or V: to registers, and what of it stays in shared memory.
  __device__ __forceinline__ void take_keys() {
#pragma unroll
    for (int step = 0; step < kRegisterSteps; ++step) {
      if (step % kStepsPerPanel == 0) {
        if (step / kStepsPerPanel >= score_panels<role>(params_)) {
          break;
        }
        wait_panel();
      }
      const auto panel =
          static_cast<uint32_t>(__cvta_generic_to_shared(smem_ + kPlan.panels + panel_.stage * kPlan.panel_bytes));
      ptx::ldmatrix_x4(keys_[step], panel + lane_offset(step % kStepsPerPanel * 16));
      if ((step + 1) % kStepsPerPanel == 0) {
        __syncwarp();
        panel_.advance();
        release_panel();
      }
    }
    if constexpr (resident_columns(C, role) > 0) {
      wait<C>(barriers_.resident_full, 0);
    }
  }

  /// K Q^T or V dO^T of a step; S less LSE where the tensor cores subtract it. `hands_on`: the block of the step before
  /// goes to the sums once all of it is issued.
  __device__ __forceinline__ void issue_product(Scores<C>& s, bool hands_on) {
    constexpr bool kAdds = role == WideRole::probabilities && has_hi_lo_lse(C);
    if constexpr (kAdds) {
      wait<C>(barriers_.rows_full[rows_.stage], rows_.parity);
    }
#pragma unroll
    for (int i = 0; i < score_columns(C, role) / kPanelColumns; ++i) {
      if (i >= score_panels<role>(params_)) {
        break;
      }
      wait_panel();
      if (i == 0) {
        ptx::wgmma_fence();
        if constexpr (kAdds) {
          add_lse(s);
        }
      }
      issue_panel<kAdds>(s, i);
      ptx::wgmma_commit_group();
      panel_.advance();
      if (i > 0) {
        ptx::wgmma_wait_group<1>();
        release_panel();
      }
    }
    if (hands_on) {
      hand_on();
    }
  }

  /// Waits for the product.
  __device__ __forceinline__ void finish_product(Scores<C>& s) {
    ptx::wgmma_wait_group<0>(s);
    release_panel();
  }

  /// LSE or D of a step.
  __device__ __forceinline__ void load_rows(RowNumbers<C>& rows) {
    wait<C>(barriers_.rows_full[rows_.stage], rows_.parity);
    load_row_numbers<C>(rows, reinterpret_cast<const float*>(smem_ + kPlan.rows + rows_.stage * kPlan.rows_bytes));
  }
  __device__ __forceinline__ void release_rows() {
    __syncwarp();
    arrive<C>(barriers_.rows_empty[rows_.stage]);
    rows_.advance();
  }

  __device__ __forceinline__ unsigned char* block_of_scores() const {
    return smem_ + kPlan.scores + scores_.stage * kPlan.scores_bytes;
  }
  __device__ __forceinline__ void wait_for_block() { wait<C>(barriers_.scores_empty[scores_.stage], scores_.parity); }

  /// P or dS as operand to shared memory.
  __device__ __forceinline__ void put(const Operand<C>& p) {
    store_score_gradients<C>(p, block_of_scores(), 0);
    cptx::fence_proxy_async(cptx::space_shared);
    __syncwarp();
  }

  /// What was put goes to the sums.
  __device__ __forceinline__ void hand_on() {
    arrive<C>(barriers_.scores_full[scores_.stage]);
    scores_.advance();
  }

  /// This thread's part of a block that one CTA hands to the other: 16 bytes at [i][thread].
  __device__ __forceinline__ unsigned char* handed_chunk(int i) const {
    return smem_ + kPlan.handed + handed_.stage * kPlan.scores_bytes +
           (i * kWarpgroupSize + static_cast<int>(threadIdx.x) % kWarpgroupSize) * 16;
  }

  const Params& params_;
  unsigned char* smem_;
  WideBarriers<C>& barriers_;
  RingPosition<C.p_stages> handed_;
  RingPosition<C.ds_stages> scores_{0, 1};
  RingPosition<kRowStages> rows_;

 private:
  __device__ __forceinline__ void wait_panel() { wait<C>(barriers_.panel_full[panel_.stage], panel_.parity); }

  /// The oldest panel that was not given back.
  __device__ __forceinline__ void release_panel() {
    arrive<C>(barriers_.panel_empty[panel_done_.stage]);
    panel_done_.advance();
  }

  /// S = LSE's part.
  __device__ __forceinline__ void add_lse(Scores<C>& s) {
    const uint32_t factors = hi_lo_factors<C.rule.element>(static_cast<int>(threadIdx.x) % 4);
    const uint32_t a[4] = {factors, factors, 0U, 0U};
    const RowsDescriptor rows = descriptor_of_rows(smem_ + kPlan.rows) + rows_.stage * (kPlan.rows_bytes >> 4);
    ptx::wgmma_rs_k<C.rule.element>(s, a, rows, 0);
  }

  /// 64 columns, the first of which begin the sum unless it `continues`.
  template <bool continues>
  __device__ __forceinline__ void issue_panel(Scores<C>& s, int panel) {
    const Descriptor queries = descriptor_k_major(smem_ + kPlan.panels) + panel_.stage * (kPlan.panel_bytes >> 4);
#pragma unroll
    for (int i = 0; i < kStepsPerPanel; ++i) {
      const int step = panel * kStepsPerPanel + i;
      const Descriptor columns = queries + k_major_step(i, C.block_m);
      if (step < kRegisterSteps) {
        ptx::wgmma_rs_k<C.rule.element>(s, keys_[step], columns, continues || step > 0 ? 1 : 0);
      } else {
        const Descriptor keys =
            descriptor_k_major(smem_ + kPlan.resident) + k_major_step(step - kRegisterSteps, kRowsPerWarpgroup);
        if (continues || step > 0) {
          ptx::wgmma_ss<C.rule.element, true>(s, keys, columns);
        } else {
          ptx::wgmma_ss<C.rule.element, false>(s, keys, columns);
        }
      }
    }
  }

  RingPosition<C.q_stages> panel_, panel_done_;
  uint32_t keys_[kRegisterSteps > 0 ? kRegisterSteps : 1][4];
};

}  // namespace strobe::sm90::backward
