// SPDX-License-Identifier: Apache-2.0
// Wide loops: what warps share that bring rows themselves, some of each block's rows each.
#pragma once

#include "kernels/sm90/forward/produce/pages.h"
#include "kernels/sm90/forward/produce/query.h"

namespace strobe::sm90::forward {

/// One of the warps. Eight lanes have the eight pieces of a panel's row, a lane always those of the same rows. The
/// lanes share the warp's rows out to find where they lie, once a block.
template <Config C, int rows_of_warp>
class WideRowFeeder {
 protected:
  static constexpr SmemPlan kPlan = smem_plan(C);
  static constexpr int kRowsOfWarp = rows_of_warp;
  static constexpr int kRowsAtOnce = kWarpSize / kPanelPieces;
  static constexpr int kRowsOfLane = kRowsOfWarp / kRowsAtOnce;
  static constexpr int kPanelBytes = tile_bytes(C.block_n, kPanelColumns);
  static_assert(kWarpSize % kRowsOfWarp == 0 && C.q_stages == 1 && C.consumer_warpgroups == 1);

  /// `first`: the warp's first row of a block.
  __device__ __forceinline__ WideRowFeeder(const Context<C>& context, int warp, int first)
      : context_(context), first_(first), warp_(warp), lane_(threadIdx.x % kWarpSize) {}

  /// Of the warp's rows, the first of those that this lane brings pieces of; the others come kRowsAtOnce behind.
  __device__ __forceinline__ int first_row() const { return lane_ / kPanelPieces; }
  __device__ __forceinline__ int piece() const { return lane_ % kPanelPieces; }

  /// The number of the page of the row whose place this lane finds, of the cursor's block.
  __device__ __forceinline__ void read_number(const KeyCursor<C>& cursor) {
    const int begin = cursor.work().k.start;
    sequence_ = cursor.work().tile.sequence;
    row_ = begin + cursor.block() * C.block_n + first_ + lane_ % kRowsOfWarp;
    number_ = row_ < begin + cursor.work().k.used ? page_number(context_.params.cache, sequence_, row_) : kNoEntry;
  }

  /// What the lane that finds the i-th of this lane's rows says of it.
  template <typename T>
  __device__ __forceinline__ T of_row(int i, T own) const {
    return __shfl_sync(kFullWarp, own, i * kRowsAtOnce + first_row());
  }

  /// A tile's columns of Q that stay in shared memory, by the first warp.
  __device__ __forceinline__ void feed_shared_queries(const TileWork& work) {
    if (warp_ == 0) {
      wait<C>(context_.barriers.q_empty[0][0], q_parity_);
      if (lane_ == 0) {
        load_shared_queries(context_, work, context_.smem + kPlan.q, context_.barriers.q_full[0][0]);
      }
      __syncwarp();
      q_parity_ ^= 1U;
    }
  }

  const Context<C>& context_;
  const int first_, warp_, lane_;
  // Of the row whose place this lane finds: where it is in its sequence, which that is, and the number of its page.
  int row_ = 0;
  int sequence_ = 0;
  int number_ = kNoEntry;
  RingPosition<C.key_panels> k_at_{0, 1};
  RingPosition<C.stages> v_at_{0, 1};

 private:
  uint32_t q_parity_ = 1;
};

}  // namespace strobe::sm90::forward
