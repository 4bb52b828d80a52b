// SPDX-License-Identifier: Apache-2.0
// The walk over a tile's key blocks, from right to left, past those that a block mask hides from all of its rows.
#pragma once

#include "kernels/sm80/forward/tile_work.h"

namespace strobe::sm80::forward {

/// Without a block mask every block is visible.
template <Config C>
class BlockWalk {
 public:
  __device__ __forceinline__ BlockWalk(const Params&, const TileWork& work) : begin_(work.n_begin) {}

  /// Whether the tile sees any block.
  __device__ __forceinline__ bool any(const TileWork& work) const { return work.n_end > begin_; }

  /// The block before n of a group of warps; less than the tile's first where there is none.
  __device__ __forceinline__ int before(int n) { return n - C.key_groups; }
  __device__ __forceinline__ bool has(int n) const { return n >= begin_; }

  /// Whether the rows of a warp may see something of a block that the tile sees.
  __device__ __forceinline__ bool shows(int, int) { return true; }

  /// Whether a mask that is a text shows the block whole to a warp's rows, as far as is known.
  __device__ __forceinline__ bool is_shown(int, int) { return false; }

 private:
  int begin_;
};

/// Whole warps walk: a bit for each of 32 neighbouring blocks, and a word for each row of the mask that the tile's rows
/// lie in.
template <Config C>
  requires(C.rule.block_mask != 0)
class BlockWalk<C> {
 public:
  __device__ __forceinline__ BlockWalk(const Params& params, const TileWork& work) : begin_(work.n_begin) {
    const BlockMaskParams& blocks = params.blocks;
    const unsigned char* const first = blocks.first(work.tile.sequence, work.tile.head);
    const int row_last = (work.q.used - 1) / C.rule.block_mask;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      rows_[i] = first + min(work.m_begin / C.rule.block_mask + i, row_last) * blocks.row_stride;
    }
    column_end_ = (work.k.used + C.rule.block_mask - 1) / C.rule.block_mask;
  }

  __device__ __forceinline__ bool any(const TileWork& work) { return has(before(work.n_end)); }

  __device__ __forceinline__ int before(int n) {
    while (n > begin_) {
      const int window = (n - 1) / kWarpSize * kWarpSize;
      load(window);
      unsigned bits = 0;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        bits |= bits_[i];
      }
      bits &= ~0U >> (kWarpSize - (n - window));
      if (bits != 0) {
        return max(window + 31 - __clz(static_cast<int>(bits)), begin_ - 1);
      }
      n = window;
    }
    return begin_ - 1;
  }
  __device__ __forceinline__ bool has(int n) const { return n >= begin_; }

  __device__ __forceinline__ bool shows(int n, int warp) {
    if constexpr (kRows == 1) {
      return true;
    }
    const int window = n / kWarpSize * kWarpSize;
    load(window);
    const unsigned bits = warp * C.rows_per_warp < C.rule.block_mask ? bits_[0] : bits_[kRows - 1];
    return (bits >> (n - window) & 1U) != 0;
  }

  __device__ __forceinline__ bool is_shown(int n, int warp) const {
    const unsigned char* const row = warp * C.rows_per_warp < C.rule.block_mask ? rows_[0] : rows_[kRows - 1];
    return __ldg(row + n / (C.rule.block_mask / C.block_n)) == kShownBlock;
  }

 private:
  // Rows of the mask that a tile lies in.
  static constexpr int kRows = block_m(C) > C.rule.block_mask ? block_m(C) / C.rule.block_mask : 1;
  static_assert(kRows <= 2 && C.rule.block_mask % C.block_n == 0 && C.key_groups == 1 && C.packed_heads == 1);

  __device__ __forceinline__ void load(int window) {
    constexpr int kColumnsPerBlock = C.rule.block_mask / C.block_n;  // blocks of this kernel in one of the mask
    if (window == window_) {
      return;
    }
    window_ = window;
    const int column = (window + lane_of_warp()) / kColumnsPerBlock;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      bits_[i] = __ballot_sync(kFullWarp, column < column_end_ && __ldg(rows_[i] + column) != 0);
    }
  }

  const unsigned char* rows_[kRows];
  int begin_;
  int column_end_;
  int window_ = -1;  // first block of what bits_ holds
  unsigned bits_[kRows] = {};
};

}  // namespace strobe::sm80::forward
