// SPDX-License-Identifier: Apache-2.0
// Wide loops: some columns of O of a CTA's 64 rows, by one warpgroup, which is told what to do block by block.
#pragma once

#include "kernels/sm90/forward/consume/wide_message.h"
#include "kernels/sm90/forward/consume/wide_values.h"
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
        probabilities_{context.smem},
        values_(context, warpgroup),
        pipe_(context.o, context.smem, warpgroup) {
    p_ = descriptor_k_major(probabilities_.block(0));
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
      if ((flags & kFirstOfTile) != 0) {
        values_.begin_tile();
      }
      const bool keeps = C.values_in_keys && (flags & kLastOfTile) != 0;
      int stages[kParts];
      multiply(o, (flags & kFirstOfTile) == 0, keeps, stages);
      if ((flags & kLastOfTile) != 0) {
        store(o, message, stages);
      }
      if (keeps) {
        give_back(stages);
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
  static constexpr int kParts = kOutputParts<C>;
  static constexpr int kColumns = kPartColumns<C>;  // of a part
  static_assert(kColumns % kPanelColumns == 0 && kParts <= 2);
  using Output = float[kParts][kColumns / 2];

  __device__ __forceinline__ static void shrink(Output& o, const BlockMessage& message) {
    const float factor[kRowsPerThread] = {message.correction[warpgroup_row(0)], message.correction[warpgroup_row(1)]};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) {
        o[part][i] *= factor[i / 2 % kRowsPerThread];
      }
    }
  }

  /// O (+)= P V of a block, part by part, out of `stages` of V's ring. They are given back unless `keeps`.
  __device__ __forceinline__ void multiply(Output& o, bool accumulate, bool keeps, int (&stages)[kParts]) {
    const Descriptor p = p_ + p_at_.stage * (Probabilities<C>::kBytes >> 4);
    Descriptor v[kParts];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {  // no WGMMA is issued yet: ptxas wants none around a wait
      values_.wait_part(part);
      v[part] = values_.values(part);
      stages[part] = values_.next_part(part);
    }
    ptx::wgmma_fence();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int step = 0; step < C.block_n / 16; ++step) {
        ptx::wgmma_ss_k_mn<C.rule.element>(o[part], p + k_major_step(step, kRowsPerWarpgroup),
                                           v[part] + mn_major_step(step), step > 0 || accumulate ? 1 : 0);
      }
      ptx::wgmma_commit_group();
    }
    if constexpr (kParts > 1) {
      ptx::wgmma_wait_group<1>();
      if (!keeps) {
        values_.give_back(stages[0]);
      }
    }
    ptx::wgmma_wait_group<0>();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      ptx::tie(o[part]);
    }
    if (!keeps) {
      values_.give_back(stages[kParts - 1]);
    }
  }

  /// The stages through which O left.
  __device__ __forceinline__ void give_back(const int (&stages)[kParts]) {
    pipe_.wait_for_reads();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      values_.give_back(stages[part]);
    }
  }

  __device__ __forceinline__ void store(const Output& o, const BlockMessage& message, const int (&stages)[kParts]) {
    const float factor[kRowsPerThread] = {message.factor[warpgroup_row(0)], message.factor[warpgroup_row(1)]};
    const bool sees[kRowsPerThread] = {!(factor[0] < 0.0F), !(factor[1] < 0.0F)};
    if constexpr (kSplits<C>) {
      if (message.slot >= 0) {
        store_part(o, message, factor, sees);
        return;
      }
    }
    if constexpr (C.values_in_keys) {
      ptx::bar_sync(kOutputTurn + output_warpgroup<C>(), kWarpgroupSize);  // all four warps have read these stages
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if constexpr (C.values_in_keys) {
        pipe_.stage_in(probabilities_.smem + smem_plan(C).v + stages[part] * smem_plan(C).v_bytes +
                       warp_of_warpgroup() * C.output_stages * kOutputPanelBytes);
      }
      const int first = values_.column(part);
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
    const SplitParams& split = reinterpret_cast<const SplitWork*>(probabilities_.smem + smem_plan(C).order)->params;
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      if (!sees[r] || warpgroup_row(r) >= message.rows) {
        continue;
      }
      float* const row = strobe::part_row<C.head_dim_v>(split, message.slot, warpgroup_row(r)).sums + fragment_column();
      float zero = 0.0F;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int j = 0; j < kColumns / 8; ++j) {
          const float2 pair = {o[part][4 * j + 2 * r] * factor[r], o[part][4 * j + 2 * r + 1] * factor[r]};
          *reinterpret_cast<float2*>(row + values_.column(part) + 8 * j) = pair;
          zero = __fmaf_rn(pair.x, 0.0F, __fmaf_rn(pair.y, 0.0F, zero));
        }
      }
      finite_ &= zero == 0.0F;
    }
  }

  Barriers<C>& barriers_;
  const Params& params_;
  const Probabilities<C> probabilities_;
  ValueRing<C> values_;
  OutputPipe<C> pipe_;
  Descriptor p_;  // of stage 0
  RingPosition<kProbabilityStages> p_at_;
  bool finite_ = true;  // whether everything that this thread stored was
};

}  // namespace strobe::sm90::forward
