// SPDX-License-Identifier: Apache-2.0
// Wide loops: some columns of O of a CTA's 64 rows, by one warpgroup, which is told what to do block by block.
#pragma once

#include "kernels/sm90/forward/consume/wide_message.h"
#include "kernels/sm90/forward/context.h"
#include "kernels/sm90/forward/store/pipe.h"
#include "kernels/sm90/ptx/wgmma.h"
#include "kernels/sm90/tile/descriptor.h"

namespace strobe::sm90::forward {

template <Config C>
class WideOutput {
 public:
  __device__ __forceinline__ WideOutput(const Context<C>& context, int warpgroup)
      : barriers_(context.barriers),
        params_(context.params),
        warpgroup_(warpgroup),
        probabilities_{context.smem},
        pipe_(context.o, context.smem, warpgroup) {
    p_ = descriptor_k_major(probabilities_.block(0));
    v_ = descriptor_mn_major(context.smem + kPlan.v, C.block_n);
    for (int before = 0; before < warpgroup; ++before) {
      v_at_.advance();
    }
  }

  /// Every block of every tile of this CTA.
  __device__ __forceinline__ void run() {
    Output o;
#pragma unroll 1
    while (true) {
      wait<C>(barriers_.p_full[p_at_.stage], p_at_.parity);
      const BlockMessage& message = probabilities_.message(p_at_.stage);
      const unsigned flags = message.flags[warp_of_warpgroup()];
      if ((flags & kNoMore) != 0) {
        break;
      }
      if ((flags & kGrew) != 0) {
        shrink(o, message);
      }
      multiply(o, (flags & kFirstOfTile) == 0);
      if ((flags & kLastOfTile) != 0) {
        store(o, message);
      }
      __syncwarp();
      arrive<C>(barriers_.p_empty[p_at_.stage]);
      p_at_.advance();
    }
    pipe_.finish();
    if constexpr (is_masked(C.rule)) {
      all_stored<C>(finite_);
    }
  }

 private:
  // With 512 threads to a CTA ptxas takes no WGMMA of more than 96 accumulators, whatever setmaxnreg says.
  static constexpr int kParts = output_columns(C) > 192 ? 2 : 1;
  static constexpr int kPartColumns = output_columns(C) / kParts;
  static constexpr int kPartBytes = tile_bytes(C.block_n, kPartColumns);
  static_assert(kPartColumns % kPanelColumns == 0);
  using Output = float[kParts][kPartColumns / 2];
  static constexpr SmemPlan kPlan = smem_plan(C);

  __device__ __forceinline__ static void shrink(Output& o, const BlockMessage& message) {
    const float factor[kRowsPerThread] = {message.correction[warpgroup_row(0)], message.correction[warpgroup_row(1)]};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kPartColumns / 2; ++i) {
        o[part][i] *= factor[i / 2 % kRowsPerThread];
      }
    }
  }

  /// O (+)= P V of a block.
  __device__ __forceinline__ void multiply(Output& o, bool accumulate) {
    wait<C>(barriers_.v_full[v_at_.stage], v_at_.parity);
    const Descriptor p = p_ + p_at_.stage * (Probabilities<C>::kBytes >> 4);
    const Descriptor v = v_ + v_at_.stage * (kPlan.v_bytes >> 4);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < C.block_n / 16; ++step) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        ptx::wgmma_ss_k_mn<C.rule.element>(o[part], p + k_major_step(step, kRowsPerWarpgroup),
                                           v + (mn_major_step(step) + part * (kPartBytes >> 4)),
                                           step > 0 || accumulate ? 1 : 0);
      }
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      ptx::tie(o[part]);
    }
    arrive<C>(barriers_.v_empty[v_at_.stage]);
#pragma unroll
    for (int i = 0; i < C.output_warpgroups; ++i) {
      v_at_.advance();
    }
  }

  __device__ __forceinline__ void store(const Output& o, const BlockMessage& message) {
    const float factor[kRowsPerThread] = {message.factor[warpgroup_row(0)], message.factor[warpgroup_row(1)]};
    const bool sees[kRowsPerThread] = {!(factor[0] < 0.0F), !(factor[1] < 0.0F)};
    if constexpr (kSplits<C>) {
      if (message.slot >= 0) {
        store_part(o, message, factor, sees);
        return;
      }
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int first = warpgroup_ * output_columns(C) + part * kPartColumns;
      const auto box_of = [&](int column) {
        const SequenceStart rows{{message.row, message.offset}, message.batch};
        return query_box<C>(rows, first + column, message.m_begin + warp_of_warpgroup() * kRowsPerWarp, message.head);
      };
      finite_ &= pipe_.store_boxes(o[part], factor, sees, box_of, panels(params_.head_dim_v - first));
    }
  }

  /// A part of a tile, for `combine`. What no key was seen of is not looked at.
  __device__ __forceinline__ void store_part(const Output& o, const BlockMessage& message,
                                             const float (&factor)[kRowsPerThread],
                                             const bool (&sees)[kRowsPerThread]) {
    const SplitParams& split = pipe_.split();
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      if (!sees[r] || warpgroup_row(r) >= message.rows) {
        continue;
      }
      float* const row = strobe::part_row<C.head_dim_v>(split, message.slot, warpgroup_row(r)).sums +
                         warpgroup_ * output_columns(C) + fragment_column();
      float zero = 0.0F;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int j = 0; j < kPartColumns / 8; ++j) {
          const float2 pair = {o[part][4 * j + 2 * r] * factor[r], o[part][4 * j + 2 * r + 1] * factor[r]};
          *reinterpret_cast<float2*>(row + part * kPartColumns + 8 * j) = pair;
          zero = __fmaf_rn(pair.x, 0.0F, __fmaf_rn(pair.y, 0.0F, zero));
        }
      }
      finite_ &= zero == 0.0F;
    }
  }

  Barriers<C>& barriers_;
  const Params& params_;
  const int warpgroup_;
  const Probabilities<C> probabilities_;
  OutputPipe<C> pipe_;
  Descriptor p_, v_;  // of stage 0
  RingPosition<kProbabilityStages> p_at_;
  RingPosition<C.stages> v_at_;
  bool finite_ = true;  // whether everything that this thread stored was
};

}  // namespace strobe::sm90::forward
