// SPDX-License-Identifier: Apache-2.0
// The producer of a CTA of a pair: two threads of two warps. One brings K or V, then LSE or D and Q or dO of every step
// 64 columns at a time, for the scores; the other dO or Q once more, half of the columns at a time, for the sums.
#pragma once

#include "kernels/ptx/grid.h"
#include "kernels/sm90/backward/wide/steps.h"
#include "kernels/sm90/ptx/cuda_ptx.h"

namespace strobe::sm90::backward {

template <Config C, WideRole role>
class WideProducer {
 public:
  __device__ __forceinline__ WideProducer(const TensorMaps& maps, const Params& params, unsigned char* smem,
                                          WideBarriers<C>& barriers, const Work& work)
      : maps_(maps),
        params_(params),
        smem_(smem),
        barriers_(barriers),
        work_(work),
        keys_(key_start<C.rule>(params, work, work.sequence, work.k.used)),
        queries_(query_start<C.rule>(params, work, work.sequence, work.q.used)) {}

  /// For the scores.
  __device__ __forceinline__ void feed_scores() {
    const int panels = score_panels<role>(params_);
    const int in_registers = min(panels, kRegisterPanels);
    for (int panel = 0; panel < in_registers; ++panel) {
      feed_panel(maps_.keys, key_box(panel));
    }
    if constexpr (resident_columns(C, role) > 0) {
      expect(barriers_.resident_full, (panels - in_registers) * kPlan.panel_bytes);
      for (int panel = in_registers; panel < panels; ++panel) {
        load_panel<false>(maps_.keys, key_box(panel),
                          smem_ + kPlan.resident + (panel - kRegisterPanels) * kPlan.panel_bytes,
                          barriers_.resident_full);
      }
    }
    for_each_wide_step<C>(params_, work_, [&](int head, int m) {
      feed_rows(head, m);
      for (int panel = 0; panel < panels; ++panel) {
        feed_panel(maps_.columns, queries_.box(panel * kPanelColumns, m * C.block_m, head));
      }
    });
  }

  /// For the sums: the columns of one warpgroup after those of the other.
  __device__ __forceinline__ void feed_sums() {
    constexpr int kColumns = half_columns(C, role);
    const int last = last_panel(existing_sum_columns<role>(params_));
    for_each_wide_step<C>(params_, work_, [&](int head, int m) {
      for (int half = 0; half < kSumWarpgroups; ++half) {
        uint64_t& full = barriers_.piece_full[piece_.stage];
        wait<C>(barriers_.piece_empty[piece_.stage], piece_.parity);
        expect(full, tile_bytes(C.block_m, kColumns));
        for (int column = 0; column < kColumns; column += kPanelColumns) {
          load_panel<false>(
              maps_.summed, queries_.box(min(half * kColumns + column, last), m * C.block_m, head),
              smem_ + kPlan.pieces + piece_.stage * kPlan.piece_bytes + column / kPanelColumns * kPlan.panel_bytes,
              full);
        }
        piece_.advance();
      }
    });
  }

 private:
  static constexpr WideSmemPlan kPlan = wide_smem_plan(C);
  static_assert(C.block_m == kRowsPerWarpgroup && block_n(C) == kRowsPerWarpgroup, "one size of panels");
  static constexpr int kRegisterPanels = register_columns(C, role) / kPanelColumns;

  __device__ __forceinline__ BoxStart key_box(int panel) const {
    return keys_.box(panel * kPanelColumns, work_.n * block_n(C), work_.head_kv);
  }

  __device__ __forceinline__ void feed_panel(const TensorMap& map, const BoxStart& box) {
    uint64_t& full = barriers_.panel_full[panel_.stage];
    wait<C>(barriers_.panel_empty[panel_.stage], panel_.parity);
    expect(full, kPlan.panel_bytes);
    load_panel<false>(map, box, smem_ + kPlan.panels + panel_.stage * kPlan.panel_bytes, full);
    panel_.advance();
  }

  /// LSE or D of a block.
  __device__ __forceinline__ void feed_rows(int head, int m) {
    constexpr bool kParts = role == WideRole::probabilities && has_hi_lo_lse(C);
    constexpr int kBytes = (kParts ? kHiLoBytes : 4) * C.block_m;
    const void* rows = role == WideRole::gradients ? params_.d_sum : params_.lse_log2;
    if constexpr (kParts) {
      rows = params_.lse_hi_lo;
    }
    const long long block = score::first_block_of<C.rule>(params_, work_.sequence, head, C.block_m) + m;
    uint64_t& full = barriers_.rows_full[rows_.stage];
    wait<C>(barriers_.rows_empty[rows_.stage], rows_.parity);
    expect(full, kBytes);
    cptx::cp_async_bulk(cptx::space_cluster, cptx::space_global, smem_ + kPlan.rows + rows_.stage * kPlan.rows_bytes,
                        static_cast<const unsigned char*>(rows) + block * kBytes, kBytes, &full);
    rows_.advance();
  }

  const RoleMaps<role> maps_;
  const Params& params_;
  unsigned char* smem_;
  WideBarriers<C>& barriers_;
  const Work& work_;
  const SequenceStart keys_, queries_;
  RingPosition<C.q_stages> panel_{0, 1};
  RingPosition<C.do_stages> piece_{0, 1};
  RingPosition<kRowStages> rows_{0, 1};
};

}  // namespace strobe::sm90::backward
