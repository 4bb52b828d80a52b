// SPDX-License-Identifier: Apache-2.0
// One tile: each warp holds its rows of Q and walks over the key blocks from right to left.
//
// One step: wait until K and V of the block are there; S = Q K^T; start the copies of a later block; softmax; P V.
// Masked blocks are at either end of the walk; the loop is one step function, peeled by trip count. Softmax and
// products overlap in two ways: exponentials of later keys run under the P V of earlier ones, in one basic block that
// ptxas mixes, and under the products of the other CTA on the multiprocessor.
#pragma once

#include "kernels/sm80/forward/epilogue.h"
#include "kernels/sm80/forward/exact_rows.h"
#include "kernels/sm80/forward/kept_rows.h"
#include "kernels/sm80/forward/loader.h"
#include "kernels/sm80/forward/merge.h"
#include "kernels/sm80/forward/probabilities.h"
#include "kernels/sm80/forward/stored_operands.h"
#include "kernels/sm80/forward/tile_scores.h"

namespace strobe::sm80::forward {

template <Config C>
class TileForward {
 public:
  using Scores = typename TileScores<C>::Scores;
  using Output = float[fragments(C)][C.head_dim_v / 2];

  /// Starts the copy of Q.
  __device__ __forceinline__ TileForward(const Params& params, const TileWork& work)
      : params_(params),
        work_(work),
        scores_(params, work),
        queries_(params, work, shared_address(staging()), scores_.first_row(work)),
        loader_(params, work),
        scales_(params, work) {}

  __device__ __forceinline__ void run() {
    if constexpr (C.key_groups > 1) {
      ptx::cp_async_commit_group();  // Q apart from the blocks
    }
    const int last =
        C.key_groups == 1 ? loader_.walk().before(work_.n_end) : work_.n_end - 1 - KeyValueLoader<C>::group();
    loader_.start(last);
    if constexpr (C.stored_operands) {
      scales_.start(last, work_.k.used);
    }
    WarpRules<C> rules = warp_rules<C>(params_, work_, scores_.first_row(work_));
    const sequence::KeyBlocks full = scores_.full_blocks();
    Output o = {};
    Softmax<C> softmax[fragments(C)];
    if constexpr (C.key_groups > 1) {
      ptx::cp_async_wait_group<stages_ahead(C)>();
      __syncthreads();
      if constexpr (C.stored_operands) {
        make_query_operands<C>();
        __syncthreads();
        scales_.take_queries(scores_.row_warp() * C.rows_per_warp);
      }
    } else {
      ptx::cp_async_wait_group<0>();  // Q, and the first blocks: nothing else is to be done meanwhile
      meet_lanes<C>();
    }
    queries_.arrived();
    scores_.for_each_block(last, full, [&]<bool masked>(int n) { return step<masked>(o, softmax, rules, n); });
    store(o, softmax);
  }

 private:
  __device__ __forceinline__ unsigned char* staging() const {
    return shared_memory() + scores_.row_warp() * smem_plan(C).warp_bytes;
  }

  /// Block n; returns the next.
  template <bool masked>
  __device__ __forceinline__ int step(Output& o, Softmax<C> (&softmax)[fragments(C)], WarpRules<C>& rules, int n) {
    loader_.before_scores(n);
    if constexpr (C.stored_operands) {
      scales_.move_on(o, loader_.walk().before(n), work_.k.used);
    }
    const bool sees = (!masked || scores_.rows_see(n)) && loader_.walk().shows(n, scores_.row_warp());
    Scores s;
    if (sees) {
      multiply_queries(s);
    }
    const bool shown = hides_by_text(C.rule) && sees && loader_.walk().is_shown(n, scores_.row_warp());
    loader_.after_scores(n);
    if (sees) {
      scores_.template transform<masked>(s, rules, n, shown);
      shift(o, softmax, s);
      multiply_values(o, softmax, rules, s, n);
    }
    loader_.end_step();
    return loader_.walk().before(n);
  }

  /// S = Q K^T.
  __device__ __forceinline__ void multiply_queries(Scores& s) const {
    if constexpr (C.stored_operands) {
      stored_scores<C.stored, CopiedKTile<C>, Queries<C>::kSteps>(s, queries_,
                                                                  k_operand<CopiedKTile<C>>(loader_.keys()));
      scales_.scale(s);
    } else if constexpr (C.rule.element == Element::fp32) {
      split_gemm_scores<KTile<C>, Queries<C>::kSteps>(s, queries_, k_operand<KTile<C>>(loader_.keys()));
    } else {
      gemm_scores<C.rule.element, KTile<C>, Queries<C>::kSteps>(s, queries_, k_operand<KTile<C>>(loader_.keys()));
    }
  }

  /// O += P V of block n, P being the exponentials of its scores.
  __device__ __forceinline__ void multiply_values(Output& o, Softmax<C> (&softmax)[fragments(C)], WarpRules<C>& rules,
                                                  Scores& s, int n) const {
#pragma unroll 1
    for (int first = 0; first < C.block_n / kStep; first += kStepsAtOnce<C>) {
#pragma unroll
      for (int i = 0; i < kStepsAtOnce<C>; ++i) {
        typename Probabilities<C>::Operand p[fragments(C)];
#pragma unroll
        for (int f = 0; f < fragments(C); ++f) {
          softmax[f].template exponentiate<kLift<C>>(s[f], i, score::remaining_scale<C.rule>(params_.score));
          if constexpr (C.stored_operands) {
            scales_.weigh(s[f], i, first + i);
          }
          Probabilities<C>::to_operand(p[f], s[f], rules.of[f].dropout, n, first, i);
        }
        Probabilities<C>::multiply_values(o, p, loader_.values(), first + i);
      }
      next_scores(s);
    }
  }

  /// The scores of later steps take the place of those that are done with.
  __device__ __forceinline__ static void next_scores(Scores& s) {
    constexpr int kRegisters = 8 * kStepsAtOnce<C>;
#pragma unroll
    for (int f = 0; f < fragments(C); ++f) {
#pragma unroll
      for (int i = 0; i + kRegisters < C.block_n / 2; ++i) {
        s[f][i] = s[f][i + kRegisters];
      }
    }
  }

  /// Raises the rows' maxima where scores pass them; what was summed before shrinks. One branch for all fragments, so
  /// that the exponentials and the products that follow are one basic block: ptxas mixes them.
  __device__ __forceinline__ void shift(Output& o, Softmax<C> (&softmax)[fragments(C)], Scores& s) const {
    if constexpr (C.rule.normalized) {
      raise_maxima(o, softmax, s);
    }
  }

  __device__ __forceinline__ void raise_maxima(Output& o, Softmax<C> (&softmax)[fragments(C)], Scores& s) const {
    const float scale = score::remaining_scale<C.rule>(params_.score);
    float highest[fragments(C)][kRowsPerThread];
    bool passes = false;
#pragma unroll
    for (int f = 0; f < fragments(C); ++f) {
      passes |= softmax[f].look_at(s[f], highest[f], scale);
    }
    if (__any_sync(kFullWarp, passes)) {
#pragma unroll
      for (int f = 0; f < fragments(C); ++f) {
        softmax[f].raise_maximum(s[f], highest[f], scale);
#pragma unroll
        for (int i = 0; i < C.head_dim_v / 2; ++i) {
          o[f][i] *= softmax[f].correction[i / 2 % kRowsPerThread];
        }
      }
#pragma unroll
      for (int f = 0; f < fragments(C); ++f) {
        if (softmax[f].has_large()) {
          softmax[f].subtract_maximum(s[f], scale);
        }
      }
    }
  }

  /// Through the shared memory that held Q.
  __device__ __forceinline__ void store(Output& o, Softmax<C> (&softmax)[fragments(C)]) {
    if constexpr (C.stored_operands) {
      finish_operands<C>(o, softmax, scales_);
    }
    if constexpr (C.key_groups > 1) {
      merge_groups<C>(o, softmax, KeyValueLoader<C>::group());
      if (KeyValueLoader<C>::group() != 0) {
        return;
      }
    }
    const TileWork work = tile_work<C>(params_);
    const int first = scores_.first_row(work);
    if constexpr (folds(C)) {
      if (!join_segments<C>(params_, work, first, o, softmax)) {
        return;
      }
    }
    if constexpr (C.debug) {
      meet_lanes<C>();  // O takes the place of Q, which racecheck does not know all lanes to have read
    }
    bool finite = true;
    if constexpr (splits(C)) {
      if (work.tile.part.slot >= 0) {
#pragma unroll
        for (int f = 0; f < fragments(C); ++f) {
          finite &= store_part_rows<C>(params_, work, first + f * kFragmentRows, softmax[f], o[f]);
        }
        if (is_repaired(C.rule) && !__all_sync(kFullWarp, finite)) {
          repair_part<C>(params_, work, first);
        }
        return;
      }
    }
#pragma unroll
    for (int f = 0; f < fragments(C); ++f) {
      float factor[kRowsPerThread];
      bool sees[kRowsPerThread];
      finish_rows<C>(params_, work, first + f * kFragmentRows, softmax[f], factor, sees);
      finite &= stage_rows<C>(staging(), f * kFragmentRows, o[f], factor, sees);
    }
    meet_lanes<C>();
    store_rows<C>(params_, work, staging(), first);
    if constexpr (is_repaired(C.rule)) {
      if (!__all_sync(kFullWarp, finite)) {
        repair_rows<C>(params_, work, first);
      }
    }
  }

  const Params& params_;
  const TileWork& work_;
  const TileScores<C> scores_;
  Queries<C> queries_;
  KeyValueLoader<C> loader_;
  [[no_unique_address]] OperandScales<C> scales_;
};

}  // namespace strobe::sm80::forward
