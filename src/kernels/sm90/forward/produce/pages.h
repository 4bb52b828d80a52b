// SPDX-License-Identifier: Apache-2.0
// The pages of blocks of K or V, by a warp. What a lane needs of the page table it reads before it waits for a stage.
#pragma once

#include "kernels/sm90/forward/produce/key_cursor.h"
#include "kernels/sm90/forward/tile/rows.h"

namespace strobe::sm90::forward {

/// What the page table says of a block, read when the block before is on its way. Every lane has some of its pieces,
/// of one or more rows each.
template <Config C, int least_rows>
class PageNumbers {
 public:
  static constexpr int kEach = (C.block_n + kWarpSize * least_rows - 1) / (kWarpSize * least_rows);

  PageNumbers() = default;
  __device__ __forceinline__ PageNumbers(const CacheParams& cache, const KeyCursor<C>& cursor, int piece_rows)
      : head_(cursor.head()),
        first_(cursor.work().k.start + cursor.block() * C.block_n),
        end_(cursor.work().k.start + cursor.work().k.used) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = row_in_block(i, piece_rows);
      numbers_[i] = kNoEntry;
      if (row < C.block_n && first_ + row < end_) {
        numbers_[i] = page_number(cache, cursor.work().tile.sequence, first_ + row);
      }
    }
  }

  /// The first row of this lane's i-th piece; block_n or more where it has none.
  __device__ __forceinline__ static int row_in_block(int i, int piece_rows) {
    return (i * kWarpSize + static_cast<int>(threadIdx.x % kWarpSize)) * piece_rows;
  }
  __device__ __forceinline__ CachePlace place(const CacheParams& cache, int i, int piece_rows) const {
    return {existing(cache, numbers_[i]), cache.by_page_size.remainder(first_ + row_in_block(i, piece_rows))};
  }
  __device__ __forceinline__ int head() const { return head_; }
  __device__ __forceinline__ int row(int i, int piece_rows) const { return first_ + row_in_block(i, piece_rows); }
  __device__ __forceinline__ int end() const { return end_; }

 private:
  int head_, first_, end_;
  int numbers_[kEach];
};

/// The pages of one block after another; `Block` is PageBlock, PageBoxes or PageRows.
template <Config C, typename Block>
class PageCursor {
 public:
  __device__ __forceinline__ PageCursor(const Params& params, const ScheduleOf<C>& schedule)
      : params_(params), cursor_(params, schedule) {}

  /// False when there is no other block.
  __device__ __forceinline__ bool next(Block& block) {
    if (!cursor_.next()) {
      return false;
    }
    block = Block(params_, cursor_);
    return true;
  }

 private:
  const Params& params_;
  KeyCursor<C> cursor_;
};

/// The pages of one block after another, read one block ahead of the block that is wanted.
template <Config C, typename Block>
  requires(C.pages_ahead)
class PageCursor<C, Block> {
 public:
  __device__ __forceinline__ PageCursor(const Params& params, const ScheduleOf<C>& schedule)
      : params_(params), cursor_(params, schedule) {
    look_ahead();
  }

  __device__ __forceinline__ bool next(Block& block) {
    if (!has_next_) {
      return false;
    }
    block = next_;
    look_ahead();
    return true;
  }

 private:
  __device__ __forceinline__ void look_ahead() {
    has_next_ = cursor_.next();
    if (has_next_) {
      next_ = Block(params_, cursor_);
    }
  }

  const Params& params_;
  KeyCursor<C> cursor_;
  Block next_;
  bool has_next_;
};

}  // namespace strobe::sm90::forward
