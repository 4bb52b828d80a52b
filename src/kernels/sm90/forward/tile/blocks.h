// SPDX-License-Identifier: Apache-2.0
// The walk over a tile's key blocks, from right to left, past those that a block mask hides from all of its rows.
// Producers and consumers walk alike.
#pragma once

#include "kernels/sm90/forward/config.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/smem.h"
#include "kernels/sm90/forward/tile/work.h"
#include "kernels/sm90/tile/fragment.h"

namespace strobe::sm90::forward {

/// Rows of a block mask that a tile lies in.
template <Config C>
constexpr int kMaskRows = C.rule.block_mask != 0 && block_m(C) > C.rule.block_mask ? block_m(C) / C.rule.block_mask : 1;

/// The row of blocks in which a warpgroup's rows of a tile lie, from the tile's first.
template <Config C>
__device__ __forceinline__ int mask_row(int warpgroup) {
  return kMaskRows<C> == 1 ? 0 : warpgroup * kRowsPerWarpgroup / C.rule.block_mask;
}

/// Without a block mask every block is visible.
template <Config C>
class BlockWalk {
 public:
  __device__ __forceinline__ BlockWalk() {}
  __device__ __forceinline__ BlockWalk(const Params&, const TileWork& work, int = 0) : begin_(work.n_begin) {}

  /// The last block before n; less than the tile's first where there is none.
  __device__ __forceinline__ int before(int n) { return n - 1; }
  __device__ __forceinline__ bool has(int n) const { return n >= begin_; }

  /// Whether blocks [begin, n) are not all hidden.
  __device__ __forceinline__ bool has_before(int n, int begin) { return n > begin; }

  /// The end of the blocks before n that the warpgroup's own rows see.
  __device__ __forceinline__ int own_end(int n) { return n; }
  __device__ __forceinline__ bool is_own(int) { return true; }

  /// Whether a mask that is a text shows block n whole to the warpgroup's rows, as far as is known.
  __device__ __forceinline__ static bool is_shown(int) { return false; }

  /// Visible blocks from n on, before `end`.
  __device__ __forceinline__ int count(int n, int end) { return end - n; }

 private:
  int begin_ = 0;
};

/// Whole warps walk: a lane holds what is known of four blocks, 32 blocks apart. Of 32 neighbouring blocks the warp has
/// a word each that says which of them the tile's rows see, its own warpgroup's rows see, and a text shows whole.
template <Config C>
  requires(C.rule.block_mask != 0)
class BlockWalk<C> {
 public:
  __device__ __forceinline__ BlockWalk() {}
  __device__ __forceinline__ BlockWalk(const Params& params, const TileWork& work, int warpgroup = 0)
      : row_stride_(params.blocks.row_stride), begin_(work.n_begin) {
    const int row_last = (work.q.used - 1) / C.rule.block_mask;
    const int row = min(work.m_begin / C.rule.block_mask, row_last);
    rows_ = params.blocks.first(work.tile.sequence, work.tile.head) + row * row_stride_;
    more_rows_ = min(row_last - row, kRows - 1);
    own_row_ = min(mask_row<C>(warpgroup), more_rows_);
    column_end_ = (work.k.used + C.rule.block_mask - 1) / C.rule.block_mask;
  }

  __device__ __forceinline__ int before(int n) {
    return find_before(n, [&] { return visible_; });
  }
  __device__ __forceinline__ bool has_before(int n, int begin) { return before(n) >= begin; }
  __device__ __forceinline__ bool has(int n) const { return n >= begin_; }

  __device__ __forceinline__ int own_end(int n) {
    return find_before(n, [&] { return own(); }) + 1;
  }

  /// Of a block that some row of the tile sees.
  __device__ __forceinline__ bool is_own(int n) {
    if constexpr (kRows == 1) {
      return true;
    }
    take(n / kBits);
    return (own() >> (n % kBits) & 1U) != 0;
  }

  __device__ __forceinline__ bool is_shown(int n) {
    if constexpr (!hides_by_text(C.rule)) {
      return false;
    }
    take(n / kBits);
    return (shown_ >> (n % kBits) & 1U) != 0;
  }

  /// What consumers are told of block n, which some row of the tile sees.
  __device__ __forceinline__ KeyTag tag(int n) {
    take(n / kBits);
    const unsigned of_rows = __shfl_sync(kFullWarp, states_, n % kBits) >> n / kBits % kWords * 8 >> kFlagsOfRows;
    const unsigned flags = of_rows & ((1U << 2 * kRows) - 1);
    return {static_cast<unsigned>(n) << KeyTag::kFlags | flags << 1 | (has(before(n)) ? 1U : 0U)};
  }

  /// The words of block n's bits for the tile's rows from `row` of its rows of blocks on.
  __device__ __forceinline__ const unsigned* bits(const Params& params, const TileWork& work, int row, int n) const {
    const unsigned char* const block = rows_ + min(row, more_rows_) * row_stride_ + n / kColumnsPerBlock;
    const int first = work.m_begin % C.rule.block_mask;
    return params.blocks.bits + (block - params.blocks.data) * block_words(C.rule.block_mask) +
           first * kBlockWordsOfRow;
  }

  __device__ __forceinline__ int count(int n, int end) {
    int blocks = 0;
    for (int at = before(end); at >= n; at = before(at)) {
      ++blocks;
    }
    return blocks;
  }

 private:
  static constexpr int kBits = 32;
  static constexpr int kWords = 4;
  static constexpr int kRows = kMaskRows<C>;
  static_assert(C.packed_heads == 1 && C.rule.block_mask % C.block_n == 0);
  static_assert(kRows == 1 || block_m(C) % C.rule.block_mask == 0);

  // Of a lane's block.
  static constexpr unsigned kVisible = 1;
  static constexpr unsigned kOwn = 2;
  static constexpr unsigned kWhole = 4;
  static constexpr int kFlagsOfRows = 3;  // and from this bit on, of each row of blocks: seen, seen whole
  static constexpr int kColumnsPerBlock = C.rule.block_mask / C.block_n;  // blocks of this kernel in one of the mask

  __device__ __forceinline__ unsigned own() const { return kRows == 1 ? visible_ : own_; }

  /// The last block before n that `seen()`, of the words that were taken, has; begin_ - 1 where there is none.
  template <typename Seen>
  __device__ __forceinline__ int find_before(int n, const Seen& seen) {
    while (n > begin_) {
      const int word = (n - 1) / kBits;
      take(word);
      const unsigned before = seen() & ~0U >> (kBits - 1 - (n - 1) % kBits);
      if (before != 0) {
        return max(word * kBits + kBits - 1 - __clz(static_cast<int>(before)), begin_ - 1);
      }
      n = word * kBits;
    }
    return begin_ - 1;
  }

  /// Blocks [kBits * word, kBits * (word + 1)).
  __device__ __forceinline__ void take(int word) {
    if (word == word_) {
      return;
    }
    if (word_ < 0 || word / kWords != word_ / kWords) {
      load(word / kWords);
    }
    word_ = word;
    const unsigned state = states_ >> word % kWords * 8;
    visible_ = __ballot_sync(kFullWarp, (state & kVisible) != 0);
    if constexpr (kRows > 1) {
      own_ = __ballot_sync(kFullWarp, (state & kOwn) != 0);
    }
    if constexpr (hides_by_text(C.rule)) {
      shown_ = __ballot_sync(kFullWarp, (state & kWhole) != 0);
    }
  }

  __device__ __forceinline__ void load(int window) {
    states_ = 0;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int block = (window * kWords + i) * kBits + static_cast<int>(threadIdx.x % kWarpSize);
      const int column = block / kColumnsPerBlock;
      unsigned state = 0;
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const long long to_row = row == 0 ? 0 : min(row, more_rows_) * row_stride_;
        const unsigned of_row = column < column_end_ ? __ldg(rows_ + to_row + column) : 0U;
        const bool is_own = kRows == 1 || row == own_row_;
        state |= of_row != 0 ? kVisible | (is_own ? kOwn : 0U) : 0U;
        state |= is_own && of_row == kShownBlock ? kWhole : 0U;
        if constexpr (has_key_tags(C)) {
          const unsigned flags = (of_row != 0 ? 1U : 0U) | (of_row == kShownBlock ? 2U : 0U);
          state |= flags << (kFlagsOfRows + 2 * row);
        }
      }
      states_ |= state << 8 * i;
    }
  }

  const unsigned char* rows_;  // the tile's first
  long long row_stride_;
  int more_rows_;  // of the mask that the tile lies in
  int own_row_;
  int begin_ = 0;
  int column_end_ = 0;
  int word_ = -1;  // which blocks the words have, a bit for each
  unsigned states_;
  unsigned visible_;
  unsigned own_;
  unsigned shown_;
};

}  // namespace strobe::sm90::forward
