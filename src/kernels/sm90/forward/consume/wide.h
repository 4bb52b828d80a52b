// SPDX-License-Identifier: Apache-2.0
// Heads of more than 256 columns: O of 64 rows is more than one warpgroup's registers hold. The consumer computes
// scores and probabilities of its rows alone; other warpgroups hold O, some columns each, and multiply P with theirs of
// V (wide_output.h).
//
// For a block n:
//   1. the consumer issues S = Q K(n)^T, of which Q lies in registers, so that only K is read from shared memory
//   2. with the last of it issued, it hands on P of block n + 1: P V of that block runs under the softmax of this one.
//      Where keys of block n are late, it hands on P at once
//   3. when S is there: softmax; P(n) and the factors of O's rows go to shared memory
// The tensor cores so have one product or the other to do all the time.
#pragma once

#include "kernels/ptx/shared_memory.h"
#include "kernels/sm90/forward/consume/steps.h"
#include "kernels/sm90/forward/consume/wide_message.h"
#include "kernels/sm90/forward/consume/wide_output.h"
#include "kernels/sm90/forward/consume/wide_rings.h"
#include "kernels/sm90/forward/store/empty.h"
#include "kernels/sm90/forward/store/lse.h"
#include "kernels/sm90/forward/store/repair.h"

namespace strobe::sm90::forward {

template <Config C>
class WideScores : private ScoreSteps<C> {
 public:
  __device__ __forceinline__ explicit WideScores(const Context<C>& context)
      : ScoreSteps<C>(context, 0), schedule_(context.schedule), smem_(context.smem), probabilities_{context.smem} {}

  /// Every tile of this CTA.
  __device__ __forceinline__ void run() {
    Scheduler<C> scheduler(params_, schedule_);
    Assignment next = next_assignment<C>({}, scheduler, params_, warpgroup());
    while (next.exists) {
      const TileWork work = next.work;
      BlockWalk<C> walk(params_, work, warpgroup());
      const int n_end = walk.own_end(next.n_end);
      if (n_end <= next.n_begin) {
        store_without_keys<C>(params_, *this, work, warpgroup());
      } else {
        tile(walk, work, next.n_begin, n_end - 1);
      }
      next = next_assignment<C>(next, scheduler, params_, warpgroup());
    }
    finish();
  }

  /// Split schedules: where parts go.
  __device__ __forceinline__ const SplitParams& split() const { return schedule_.params; }

 private:
  using typename ScoreSteps<C>::Rules;
  using typename ScoreSteps<C>::Scores, typename ScoreSteps<C>::Operand;
  using ScoreSteps<C>::first_softmax, ScoreSteps<C>::find_text, ScoreSteps<C>::params_;
  using Rings<C>::barriers_, Rings<C>::warpgroup, Rings<C>::queries, Rings<C>::wait_q, Rings<C>::release_q;
  using Rings<C>::wait_query_piece, Rings<C>::release_query_piece;
  using Rings<C>::keys, Rings<C>::has_piece, Rings<C>::wait_piece, Rings<C>::next_piece, Rings<C>::release_piece;
  using Pieces = KeyPieces<C>;

  /// Whether keys come late: converted, or of parts of tiles in boxes of pages. P V then need not wait until all of a
  /// block's scores are issued. log: wide-hands-on, wide-hands-on-boxes, wide-page-blocks
  static constexpr bool kKeysAreLate =
      C.keys == KeySource::rows_in_format || (in_page_boxes(C) && C.schedule == Schedule::split);
  static constexpr bool kHasSharedQueries = C.register_columns < C.head_dim;
  static constexpr int kRegisterSteps = C.register_columns / 16;
  static constexpr int kStepsPerPanel = kPanelColumns / 16;
  static constexpr int kPanelBytes = tile_bytes(kRowsPerWarpgroup, kPanelColumns);

  /// A tile, from block n down.
  __device__ __forceinline__ void tile(BlockWalk<C>& walk, const TileWork& work, int n_begin, int n) {
    take_queries();
    const Rules rules = tile_rules<C>(params_, work, warpgroup());
    Softmax<C> softmax;
    unsigned flags = kFirstOfTile;
#pragma unroll 1
    while (true) {
      Scores s;
      const auto bias = rules.transform.fetch(n);
      issue_scores(s, (flags & kFirstOfTile) == 0);
      const auto text = find_text(rules, n, walk.is_shown(n));
      const int next = walk.before(n);
      const auto slices = rules.dropout.draw(n);

      ptx::wgmma_wait_group<0>(s);
      release_piece(Pieces::kCount - 1);
      const bool grew = first_softmax(s, softmax, rules, n, bias, text);
      if (grew && (flags & kFirstOfTile) == 0) {
        flags |= kGrew;
      }
      Operand p;
      rules.dropout.to_operand(p, s, slices);
      if (next < n_begin) {
        flags |= kLastOfTile;
        softmax.finish();
        put(p, softmax, flags);
        end(work, softmax);
        hand_on();
        return;
      }
      put(p, softmax, flags);
      flags = 0;
      n = next;
    }
  }

  /// Q to registers, and what of it stays in shared memory.
  __device__ __forceinline__ void take_queries() {
    constexpr int kSteps = kQueryColumns<C> / 16;  // of a piece
    uint32_t piece = 0;
#pragma unroll
    for (int step = 0; step < kRegisterSteps; ++step) {
      if (step % kSteps == 0) {
        piece = static_cast<uint32_t>(__cvta_generic_to_shared(smem_ + wait_query_piece()));
      }
      const int panel = step % kSteps / kStepsPerPanel;
      ptx::ldmatrix_x4(q_[step], piece + panel * kPanelBytes + lane_offset(step % kStepsPerPanel * 16));
      if ((step + 1) % kSteps == 0 || step + 1 == kRegisterSteps) {
        __syncwarp();
        release_query_piece();
      }
    }
    if constexpr (kHasSharedQueries) {
      wait_q();
    }
  }

  /// S = Q K^T of a block. `hands_on`: P of the block before goes to the others once all of it is issued, or when keys
  /// are waited for: P V then has the tensor cores for itself, and gives back the stages that later keys need.
  __device__ __forceinline__ void issue_scores(Scores& s, bool hands_on) {
#pragma unroll
    for (int i = 0; i < Pieces::kCount; ++i) {
      if constexpr (kKeysAreLate) {
        if (hands_on && !has_piece(i)) {
          hand_on();
          hands_on = false;
        }
      }
      wait_piece(i);
      if (i == 0) {
        ptx::wgmma_fence();
      }
#pragma unroll
      for (int step = 0; step < Pieces::columns(i) / 16; ++step) {
        const Descriptor k = keys(i) + k_major_step(step, C.block_n);
        const int of_row = Pieces::first(i) / 16 + step;
        const bool is_first = i == 0 && step == 0;
        if (of_row < kRegisterSteps) {
          ptx::wgmma_rs_k<C.rule.element>(s, q_[of_row], k, is_first ? 0 : 1);
        } else {
          const Descriptor q = queries() + k_major_step(of_row - kRegisterSteps, kRowsPerWarpgroup);
          if (is_first) {
            ptx::wgmma_ss<C.rule.element, false>(s, q, k);
          } else {
            ptx::wgmma_ss<C.rule.element, true>(s, q, k);
          }
        }
      }
      ptx::wgmma_commit_group();
      next_piece(i);
      if (i > 0) {
        ptx::wgmma_wait_group<1>();
        release_piece(i - 1);
      }
    }
    if (hands_on) {
      hand_on();
    }
  }

  /// P to shared memory, with what is to become of O's rows before it joins them.
  __device__ __forceinline__ void put(const Operand& p, const Softmax<C>& softmax, unsigned flags) {
    wait<C>(barriers_.p_empty[at_.stage], at_.parity);
    const auto block = static_cast<uint32_t>(__cvta_generic_to_shared(probabilities_.block(at_.stage)));
#pragma unroll
    for (int step = 0; step < C.block_n / 16; ++step) {
      ptx::stmatrix_x4(block + lane_offset(step * 16), p[step]);
    }
    BlockMessage& message = probabilities_.message(at_.stage);
    if ((flags & kGrew) != 0 && threadIdx.x % 4 == 0) {
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        message.correction[warpgroup_row(r)] = softmax.correction[r];
      }
    }
    if (threadIdx.x % kWarpSize == 0) {
      message.flags[warp_of_warpgroup()] = flags;
    }
    cptx::fence_proxy_async(cptx::space_shared);
    __syncwarp();
  }

  /// What was put goes to the warpgroups that hold O.
  __device__ __forceinline__ void hand_on() {
    arrive<C>(barriers_.p_full[at_.stage]);
    at_.advance();
  }

  /// Of a tile's last block: what O's rows are multiplied by then, and where they go.
  __device__ __forceinline__ void end(const TileWork& work, Softmax<C>& softmax) {
    if constexpr (kHasSharedQueries) {
      release_q();
    }
    BlockMessage& message = probabilities_.message(at_.stage);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const int row = work.m_begin + warpgroup_row(r);
      const bool exists = row < work.q.used * C.packed_heads;
      const bool sees = exists && softmax.sum[r] != 0.0F;
      float factor = 1.0F;
      if constexpr (C.rule.sink) {
        const bool joins = exists && joins_sink<C>(work.tile.part);
        factor =
            softmax.join(r, joins ? score::sink_log2<C.rule>(params_.score, head_of<C>(work, row)) : kMinusInfinity);
      }
      if (kSplits<C> && work.tile.part.slot >= 0) {
        if (threadIdx.x % 4 == 0) {
          put_part_row(message, work, r, {softmax.max_log2[r], softmax.sum[r]}, sees ? factor : -1.0F);
        }
        continue;
      }
      factor *= ptx::rcp_approx(softmax.sum[r]);
      if constexpr (C.rule.dropout) {
        factor *= params_.score.dropout.keep_factor;
      }
      if (threadIdx.x % 4 == 0) {
        message.factor[warpgroup_row(r)] = sees ? factor : -1.0F;
        if (row < work.q.owned * C.packed_heads) {
          store_lse<C>(params_, work, row, exists ? softmax.lse(r) : kMinusInfinity);
        }
      }
    }
    if constexpr (C.rule.max_logits) {
      store_max_logits<C>(params_, work, warpgroup(), softmax);
    }
    if (threadIdx.x % kWarpgroupSize == 0) {
      const SequenceStart rows = query_start<C>(params_, work, work.q.owned);
      message.row = rows.first.row;
      message.offset = rows.first.offset;
      message.batch = rows.batch;
      message.m_begin = work.m_begin;
      message.head = work.tile.head;
      if constexpr (kSplits<C>) {
        message.slot = work.tile.part.slot;
        message.rows = work.q.used * C.packed_heads - work.m_begin;
      }
    }
    if constexpr (kSplits<C>) {
      store_sharers<C>(params_, split(), work, warpgroup());
    }
    __syncwarp();
  }

  /// Of a part of a tile sums stay undivided: of row r of this thread, what `combine` wants to know.
  __device__ __forceinline__ void put_part_row(BlockMessage& message, const TileWork& work, int r,
                                               const PartStatistics& statistics, float factor) const {
    if constexpr (kSplits<C>) {
      const int row = warpgroup_row(r);
      message.factor[row] = factor;
      if (work.m_begin + row < work.q.used * C.packed_heads) {
        *part_row<C>(split(), work, row).statistics = statistics;
      }
    }
  }

  /// After the last tile: rows that are in none, and those whose output is not finite.
  __device__ __forceinline__ void finish() {
    wait<C>(barriers_.p_empty[at_.stage], at_.parity);
    if (threadIdx.x % kWarpSize == 0) {
      probabilities_.message(at_.stage).flags[warp_of_warpgroup()] = kNoMore;
    }
    __syncwarp();
    hand_on();
    if constexpr (C.schedule == Schedule::sorted || (kSplits<C> && C.rule.varlen)) {
      clear_unused_rows<C>(params_, warpgroup());
    }
    if constexpr (is_masked(C.rule)) {
      if (!all_stored<C>(true)) {
        repair_rows<C>(params_, schedule_, warpgroup());
      }
    }
  }

  const ScheduleOf<C>& schedule_;
  unsigned char* smem_;
  const Probabilities<C> probabilities_;
  RingPosition<kProbabilityStages> at_{0, 1};
  uint32_t q_[kRegisterSteps > 0 ? kRegisterSteps : 1][4];
};

/// What a warpgroup of a wide loop does: the first one computes scores.
template <Config C>
class WideLoop {
 public:
  __device__ __forceinline__ WideLoop(const Context<C>& context, int warpgroup)
      : context_(context), warpgroup_(warpgroup) {}

  __device__ __forceinline__ void run() {
    if (warpgroup_ == 0) {
      if constexpr (C.consumer_registers < registers_at_launch(C)) {
        ptx::setmaxnreg_dec<C.consumer_registers>();
      } else {
        ptx::setmaxnreg_inc<C.consumer_registers>();
      }
      WideScores<C>(context_).run();
    } else {
      ptx::setmaxnreg_inc<C.output_registers>();
      WideOutput<C>(context_, warpgroup_ - 1).run();
    }
  }

 private:
  const Context<C>& context_;
  const int warpgroup_;
};

}  // namespace strobe::sm90::forward
