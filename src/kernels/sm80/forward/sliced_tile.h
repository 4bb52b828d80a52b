// SPDX-License-Identifier: Apache-2.0
// One tile of wide heads: warps share rows, as one has no registers for all columns of O.
//
// A warp computes the scores of its rows and some of a block's keys, slice by slice of K as they arrive; the warps that
// share the rows agree on maxima, exchange probabilities through shared memory, and add to their own columns of O,
// slice by slice of V. Masks, modifiers and dropout see a warp's keys as a block of their own.
#pragma once

#include "kernels/sm80/forward/exact_rows.h"
#include "kernels/sm80/forward/loader.h"
#include "kernels/sm80/forward/probabilities.h"
#include "kernels/sm80/forward/shared_rows.h"
#include "kernels/sm80/forward/slice_ring.h"
#include "kernels/sm80/forward/tile_scores.h"

namespace strobe::sm80::forward {

template <Config C>
class SlicedForward {
 public:
  using Scores = typename TileScores<C>::Scores;

  /// Starts the copy of Q.
  __device__ __forceinline__ SlicedForward(const Params& params, const TileWork& work)
      : params_(params),
        work_(work),
        scores_(params, work),
        rows_(scores_.row_warp(), scores_.column_warp()),
        ring_(params, work) {
    Queries<C>(params, work, shared_address(staging()), scores_.first_row(work));
  }

  __device__ __forceinline__ void run() {
    const int last = ring_.walk().before(work_.n_end);
    ring_.start(last);
    WarpRules<C> rules = warp_rules<C>(params_, work_, scores_.first_row(work_));
    const sequence::KeyBlocks full = scores_.full_blocks();
    Output o = {};
    Softmax<C> softmax[fragments(C)];
    scores_.for_each_block(last, full, [&]<bool masked>(int n) { return step<masked>(o, softmax, rules, n); });
    store(o, softmax);
  }

 private:
  static constexpr int kPairs = C.slice_columns / C.column_warps / kStep;  // of a slice of V, that are this warp's
  using Slice = float[fragments(C)][8 * kPairs];
  using Output = Slice[value_slices(C)];
  using Highest = typename SharedRows<C>::Numbers;

  /// Q of the warps that share the rows, and when they are done with it O.
  __device__ __forceinline__ unsigned char* staging() const {
    return shared_memory() + scores_.row_warp() * smem_plan(C).warp_bytes;
  }

  /// Block n; returns the next.
  template <bool masked>
  __device__ __forceinline__ int step(Output& o, Softmax<C> (&softmax)[fragments(C)], WarpRules<C>& rules, int n) {
    const bool sees = (!masked || scores_.rows_see(n)) && ring_.walk().shows(n, scores_.row_warp());
    Scores s = {};
#pragma unroll 1
    for (int slice = 0; slice < key_slices(C); ++slice) {
      const uint32_t keys = ring_.next();
      if (sees) {
        multiply_queries(s, keys, slice);
      }
    }
    if (sees) {
      const bool shown = hides_by_text(C.rule) && ring_.walk().is_shown(n, scores_.row_warp());
      scores_.template transform<masked>(s, rules, n, shown);
    }
    shift(o, softmax, s, sees);
    if (sees) {
      share_probabilities(softmax, rules, s, n);
    }
#pragma unroll
    for (int slice = 0; slice < value_slices(C); ++slice) {
      const uint32_t values = ring_.next();
      if (sees) {
        multiply_values(o[slice], values);
      }
    }
    return ring_.walk().before(n);
  }

  /// S += Q K^T of a slice, panel by panel: of more steps in one basic block ptxas loads operands ahead, and runs out
  /// of registers.
  __device__ __forceinline__ void multiply_queries(Scores& s, uint32_t keys, int slice) const {
    using Tile = SliceTile<C>;
    static_assert(Tile::kPanelColumns == QTile<C>::kPanelColumns);
    constexpr int kPanelSteps = Tile::kPanelColumns / kStep;
    uint32_t k = k_operand<Tile>(keys + scores_.column_warp() * warp_keys(C) * Tile::kRowBytes);
    uint32_t first = a_operand<QTile<C>>(shared_address(staging()), 0) + slice * Tile::kPanels * QTile<C>::kPanelBytes;
#pragma unroll 1
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
#pragma unroll
      for (int step = 0; step < kPanelSteps; ++step) {
        uint32_t q[fragments(C)][4];
#pragma unroll
        for (int f = 0; f < fragments(C); ++f) {
          ptx::ldmatrix_x4(q[f], QTile<C>::pair_after(first, step) + f * kFragmentRows * QTile<C>::kRowBytes);
        }
        score_step<C.rule.element, Tile, true>(s, q, k, step);
      }
      k += Tile::kPanelBytes;
      first += QTile<C>::kPanelBytes;
    }
  }

  /// Raises the rows' maxima where scores of any warp pass them; what was summed before shrinks.
  __device__ __forceinline__ void shift(Output& o, Softmax<C> (&softmax)[fragments(C)], Scores& s, bool sees) const {
    if constexpr (C.rule.normalized) {
      raise_passed_maxima(o, softmax, s, sees);
    }
  }

  __device__ __forceinline__ void raise_passed_maxima(Output& o, Softmax<C> (&softmax)[fragments(C)], Scores& s,
                                                      bool sees) const {
    const float scale = score::remaining_scale<C.rule>(params_.score);
    Highest highest;
    bool passes = false;
    if (sees) {
#pragma unroll
      for (int f = 0; f < fragments(C); ++f) {
        passes |= softmax[f].look_at(s[f], highest[f], scale);
      }
    }
    if (__syncthreads_or(passes)) {
      raise_maxima(o, softmax, s, highest, sees);
    }
  }

  __device__ __forceinline__ void raise_maxima(Output& o, Softmax<C> (&softmax)[fragments(C)], Scores& s,
                                               Highest& highest, bool sees) const {
    const float scale = score::remaining_scale<C.rule>(params_.score);
    if (sees) {
#pragma unroll
      for (int f = 0; f < fragments(C); ++f) {
        Softmax<C>::find_rows_highest(s[f], highest[f]);
      }
      rows_.share(highest);
    }
    __syncthreads();
    if (!sees) {
      return;
    }
    rows_.joined(highest, SharedRows<C>::kHigher);
#pragma unroll
    for (int f = 0; f < fragments(C); ++f) {
      softmax[f].raise_maximum(highest[f], scale);
      if (softmax[f].has_large()) {
        softmax[f].subtract_maximum(s[f], scale);
      }
#pragma unroll
      for (int slice = 0; slice < value_slices(C); ++slice) {
#pragma unroll
        for (int i = 0; i < 8 * kPairs; ++i) {
          o[slice][f][i] *= softmax[f].correction[i / 2 % kRowsPerThread];
        }
      }
    }
  }

  /// The scores of this warp's keys become probabilities that all warps of its rows read.
  __device__ __forceinline__ void share_probabilities(Softmax<C> (&softmax)[fragments(C)], WarpRules<C>& rules,
                                                      Scores& s, int n) const {
#pragma unroll
    for (int step = 0; step < warp_keys(C) / kStep; ++step) {
#pragma unroll
      for (int f = 0; f < fragments(C); ++f) {
        softmax[f].exponentiate(s[f], step, score::remaining_scale<C.rule>(params_.score));
        typename Probabilities<C>::Operand p;
        Probabilities<C>::to_operand(p, s[f], rules.of[f].dropout, scores_.own_block(n), 0, step);
        rows_.store_probabilities(f, step, p);
      }
    }
  }

  /// This warp's columns of a slice of O += P V.
  __device__ __forceinline__ void multiply_values(Slice& o, uint32_t values) const {
    using Tile = SliceTile<C>;
    const TileColumns<Tile, kPairs> columns(v_operand<Tile>(values), scores_.column_warp() * kPairs);
#pragma unroll
    for (int step = 0; step < C.block_n / kStep; ++step) {
      uint32_t p[fragments(C)][4];
      rows_.load_probabilities(p, step);
      product_step<C.rule.element, Tile::kRowBytes>(o, p, columns, step);
    }
  }

  /// The first of the sixteen columns of a row of O that a warp has of a slice.
  __device__ __forceinline__ int first_pair(int slice) const {
    return slice * (C.slice_columns / kStep) + scores_.column_warp() * kPairs;
  }

  /// Through the shared memory that held Q: each warp has some columns of the rows, and stores some of the rows.
  __device__ __forceinline__ void store(Output& o, Softmax<C> (&softmax)[fragments(C)]) const {
    rows_.finish(softmax);
    const TileWork work = tile_work<C>(params_);
    const int first = scores_.first_row(work);
    const int own = scores_.column_warp() * stored_rows(C);
    const bool is_part = splits(C) && work.tile.part.slot >= 0;
    const bool finite = is_part ? store_part(work, first, o, softmax) : stage(work, first, o, softmax);
    const bool spoilt = __syncthreads_or(!finite) != 0;
    if (is_part) {
      if (is_repaired(C.rule) && spoilt) {
        repair_part<C>(params_, work, first + own);
      }
      return;
    }
    store_rows<C>(params_, work, staging(), first, own);
    if (is_repaired(C.rule) && spoilt) {
      repair_rows<C>(params_, work, first + own);
    }
  }

  /// O to shared memory, and LSE to where it belongs. False if a value is not finite.
  __device__ __forceinline__ bool stage(const TileWork& work, int first, Output& o,
                                        Softmax<C> (&softmax)[fragments(C)]) const {
    bool finite = true;
#pragma unroll
    for (int f = 0; f < fragments(C); ++f) {
      float factor[kRowsPerThread];
      bool sees[kRowsPerThread];
      finish_rows<C>(params_, work, first + f * kFragmentRows, softmax[f], factor, sees, scores_.column_warp() == 0);
#pragma unroll
      for (int slice = 0; slice < value_slices(C); ++slice) {
        finite &= stage_rows<C>(staging(), f * kFragmentRows, o[slice][f], factor, sees, first_pair(slice));
      }
    }
    return finite;
  }

  /// This CTA's part of a tile. False if a value is not finite.
  __device__ __forceinline__ bool store_part(const TileWork& work, int first, Output& o,
                                             Softmax<C> (&softmax)[fragments(C)]) const {
    bool finite = true;
#pragma unroll
    for (int f = 0; f < fragments(C); ++f) {
      if (scores_.column_warp() == 0) {
        store_max_logits<C>(params_, work, first + f * kFragmentRows, softmax[f]);
      }
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        const int row = first + f * kFragmentRows + score::fragment_row(r);
        if (row >= used_rows<C>(work)) {
          continue;
        }
        const float factor = join_sink_of_part<C>(params_, work, row, softmax[f], r);
        PartRow to = part_row<C.head_dim_v>(params_.split, work.tile.part.slot, row - work.m_begin);
        float* const sums = to.sums;
#pragma unroll
        for (int slice = 0; slice < value_slices(C); ++slice) {
          to.sums = sums + first_pair(slice) * kStep;
          finite &= store_part_row<C.rule, kPairs * kStep>(to, r, o[slice][f], factor, softmax[f].max_log2[r],
                                                           softmax[f].sum[r]);
        }
      }
    }
    return finite;
  }

  const Params& params_;
  const TileWork& work_;
  const TileScores<C> scores_;
  const SharedRows<C> rows_;
  SliceRing<C> ring_;
};

}  // namespace strobe::sm80::forward
