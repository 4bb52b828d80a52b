// SPDX-License-Identifier: Apache-2.0
// The walk over a tile's key blocks, from right to left, past those that a block mask hides from all of its rows.
// Producers and consumers walk alike.
#pragma once

#include "kernels/sm90/forward/config.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/tile/work.h"
#include "kernels/sm90/tile/fragment.h"

namespace strobe::sm90::forward {

/// Without a block mask every block is visible.
template <Config C>
class BlockWalk {
 public:
  __device__ __forceinline__ BlockWalk() {}
  __device__ __forceinline__ BlockWalk(const Params&, const TileWork& work) : begin_(work.n_begin) {}

  /// The last block before n; less than the tile's first where there is none.
  __device__ __forceinline__ int before(int n) { return n - 1; }
  __device__ __forceinline__ bool has(int n) const { return n >= begin_; }

  /// Whether blocks [begin, n) are not all hidden.
  __device__ __forceinline__ bool has_before(int n, int begin) { return n > begin; }

  /// The end of the blocks before n that a warpgroup's own rows see.
  __device__ __forceinline__ int own_end(int n, int) { return n; }
  __device__ __forceinline__ bool is_own(int, int) { return true; }

  /// Whether a mask that is a text shows block n whole to a warpgroup's rows, as far as is known.
  __device__ __forceinline__ bool is_shown(int, int) { return false; }

  /// Visible blocks from n on, before `end`.
  __device__ __forceinline__ int count(int n, int end) { return end - n; }

 private:
  int begin_ = 0;
};

/// Whole warps walk: a lane holds the mask of kBlocksPerLane neighbouring blocks, a bit for each warpgroup's rows.
template <Config C>
  requires(C.rule.block_mask != 0)
class BlockWalk<C> {
 public:
  __device__ __forceinline__ BlockWalk() {}
  __device__ __forceinline__ BlockWalk(const Params& params, const TileWork& work) : begin_(work.n_begin) {
    const BlockMaskParams& blocks = params.blocks;
    const unsigned char* const first = blocks.first(work.tile.sequence, work.tile.head);
    const int row_last = (work.q.used - 1) / C.rule.block_mask;
#pragma unroll
    for (int w = 0; w < kRows; ++w) {
      rows_[w] = first + min(work.row_of(w) / C.rule.block_mask, row_last) * blocks.row_stride;
    }
    column_end_ = (work.k.used + C.rule.block_mask - 1) / C.rule.block_mask;
  }

  __device__ __forceinline__ int before(int n) { return find_before(n, ~0U); }
  __device__ __forceinline__ bool has_before(int n, int begin) { return before(n) >= begin; }
  __device__ __forceinline__ bool has(int n) const { return n >= begin_; }
  __device__ __forceinline__ int own_end(int n, int warpgroup) {
    return find_before(n, kLowBits << row_of(warpgroup)) + 1;
  }

  __device__ __forceinline__ bool is_own(int n, int warpgroup) { return own_end(n + 1, warpgroup) == n + 1; }

  __device__ __forceinline__ bool is_shown(int n, int warpgroup) {
    const int window = n / kBlocksPerWindow * kBlocksPerWindow;
    if (window != window_) {
      load(window);
    }
    const unsigned shown = __shfl_sync(kFullWarp, shown_, (n - window) / kBlocksPerLane);
    return (shown >> (n % kBlocksPerLane * kBitsPerBlock + row_of(warpgroup)) & 1U) != 0;
  }

  __device__ __forceinline__ int count(int n, int end) {
    int blocks = 0;
    for (int at = before(end); at >= n; at = before(at)) {
      ++blocks;
    }
    return blocks;
  }

 private:
  // Rows of the mask that a tile's warpgroups lie in.
  static constexpr int kRows = C.rule.block_mask == kRowsPerWarpgroup ? C.consumer_warpgroups : 1;
  static constexpr int kBlocksPerLane = 4;
  static constexpr int kBlocksPerWindow = kBlocksPerLane * kWarpSize;
  static constexpr int kBitsPerBlock = 8;
  static constexpr unsigned kLowBits = 0x01010101U;
  static_assert(C.packed_heads == 1 && C.rule.block_mask % C.block_n == 0 && kRows <= kBitsPerBlock);
  static_assert(kRows > 1 || block_m(C) <= C.rule.block_mask);

  __device__ __forceinline__ static int row_of(int warpgroup) { return kRows == 1 ? 0 : warpgroup; }

  /// The last block before n with one of these bits; begin_ - 1 where there is none.
  __device__ __forceinline__ int find_before(int n, unsigned wanted) {
    while (n > begin_) {
      const int window = (n - 1) / kBlocksPerWindow * kBlocksPerWindow;
      if (window != window_) {
        load(window);
      }
      const int lane = threadIdx.x % kWarpSize;
      const int left = n - window - lane * kBlocksPerLane;  // blocks of this lane that are before n
      const unsigned before = left >= kBlocksPerLane ? ~0U : left > 0 ? ~(~0U << left * kBitsPerBlock) : 0U;
      const unsigned mine = bits_ & wanted & before;
      const unsigned lanes = __ballot_sync(kFullWarp, mine != 0);
      if (lanes != 0) {
        const int found = 31 - __clz(static_cast<int>(lanes));
        const unsigned bits = __shfl_sync(kFullWarp, mine, found);
        const int block = window + found * kBlocksPerLane + (31 - __clz(static_cast<int>(bits))) / kBitsPerBlock;
        return max(block, begin_ - 1);
      }
      n = window;
    }
    return begin_ - 1;
  }

  __device__ __forceinline__ void load(int window) {
    constexpr int kColumnsPerBlock = C.rule.block_mask / C.block_n;  // blocks of this kernel in one of the mask
    window_ = window;
    bits_ = 0;
    shown_ = 0;
#pragma unroll
    for (int i = 0; i < kBlocksPerLane; ++i) {
      const int column = (window + threadIdx.x % kWarpSize * kBlocksPerLane + i) / kColumnsPerBlock;
#pragma unroll
      for (int w = 0; w < kRows; ++w) {
        const unsigned state = column < column_end_ ? __ldg(rows_[w] + column) : 0U;
        bits_ |= (state != 0 ? 1U : 0U) << (i * kBitsPerBlock + w);
        if constexpr (C.rule.text.mask) {
          shown_ |= (state == kShownBlock ? 1U : 0U) << (i * kBitsPerBlock + w);
        }
      }
    }
  }

  const unsigned char* rows_[kRows];
  int begin_ = 0;
  int column_end_ = 0;
  int window_ = -1;  // first block of what bits_ holds
  unsigned bits_ = 0;
  unsigned shown_ = 0;  // likewise, of blocks that a text shows whole
};

}  // namespace strobe::sm90::forward
