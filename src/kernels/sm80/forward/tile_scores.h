// SPDX-License-Identifier: Apache-2.0
// What a warp must know of its place in a tile to turn products into scores: which rows and keys of a block are its
// own, which blocks are masked, and what masks, modifiers and texts make of a block.
#pragma once

#include "kernels/sm80/forward/block_walk.h"
#include "kernels/sm80/forward/row_rules.h"

namespace strobe::sm80::forward {

template <Config C>
class TileScores {
 public:
  using Scores = float[fragments(C)][warp_keys(C) / 2];

  __device__ __forceinline__ TileScores(const Params& params, const TileWork& work)
      : params_(params), work_(work), warp_(warp_of_cta()) {}

  /// The number of this warp's rows within its group.
  __device__ __forceinline__ int row_warp() const {
    return (C.key_groups == 1 ? warp_ : warp_ % (row_warps(C) * C.column_warps)) / C.column_warps;
  }

  /// Which of the warps that share its rows this one is.
  __device__ __forceinline__ int column_warp() const { return C.column_warps == 1 ? 0 : warp_ % C.column_warps; }

  /// The first row of this warp.
  __device__ __forceinline__ int first_row(const TileWork& work) const {
    return work.m_begin + row_warp() * C.rows_per_warp;
  }

  /// Calls step<masked>(n), which computes block n and returns the next, for the tile's blocks from n on: masked ones
  /// are at either end.
  template <typename Step>
  __device__ __forceinline__ void for_each_block(int n, const sequence::KeyBlocks& full, const Step& step) const {
    while (n >= max(full.end, work_.n_begin)) {
      n = step.template operator()<true>(n);
    }
    while (n >= max(full.begin, work_.n_begin)) {
      n = step.template operator()<false>(n);
    }
    if constexpr (C.rule.mask_left) {
      while (n >= work_.n_begin) {
        n = step.template operator()<true>(n);
      }
    }
  }

  /// Blocks that all rows of the tile see whole.
  __device__ __forceinline__ sequence::KeyBlocks full_blocks() const {
    const int last_row = min(work_.m_begin + block_m(C), used_rows<C>(work_)) - 1;
    return {(keys_of<C>(params_, work_, last_row).first + C.block_n - 1) / C.block_n,
            score::first_tree_block<C.rule>(work_, C.block_n,
                                            (keys_of<C>(params_, work_, work_.m_begin).last + 1) / C.block_n)};
  }

  // Masked steps are few. What they need to know of the tile is found anew in each, and takes no registers from others.

  /// Whether some row of this warp may see a key of the block.
  __device__ __forceinline__ bool rows_see(int n) const {
    const TileWork work = tile_work<C>(params_);
    const sequence::KeyBlocks own = key_blocks<C>(params_, work, first_row(work), C.rows_per_warp);
    return n >= own.begin && n < own.end;
  }

  /// The products of this warp's keys of block n become scores. `shown`: a mask that is a text shows the whole block.
  template <bool masked>
  __device__ __forceinline__ void transform(Scores& s, const WarpRules<C>& rules, int n, bool shown) const {
    const int own = own_block(n);
#pragma unroll
    for (int f = 0; f < fragments(C); ++f) {
      const auto& transform = rules.of[f].transform;
      transform.template apply<!masked>(s[f], own, transform.fetch(own));
    }
    if constexpr (masked) {
      mask(s, own);
    }
    if constexpr (hides_by_text(C.rule)) {
      if (!shown) {
#pragma unroll
        for (int f = 0; f < fragments(C); ++f) {
          hide_by_text(s[f], rules.of[f], own);
        }
      }
    }
  }

  /// The number of this warp's part of block n, as what turns its scores counts them.
  __device__ __forceinline__ int own_block(int n) const { return n * C.column_warps + column_warp(); }

 private:
  template <int n>
  __device__ __forceinline__ static void hide_by_text(float (&s)[n], const RowRules<C>& rules, int own) {
    if constexpr (C.rule.text.mask) {
      rules.transform.hide(s, own);
    } else {
      rules.bits.find(own * warp_keys(C)).hide(s);
    }
  }

  __device__ __forceinline__ void mask(Scores& s, int own) const {
    const TileWork work = tile_work<C>(params_);
#pragma unroll
    for (int f = 0; f < fragments(C); ++f) {
      const auto rows = row_mask<C>(params_, work, first_row(work) + f * kFragmentRows);
      if (rows.needed(own)) {
        rows.apply(s[f], own);
      }
    }
  }

  const Params& params_;
  const TileWork& work_;
  const int warp_;
};

}  // namespace strobe::sm80::forward
