// SPDX-License-Identifier: Apache-2.0
// Wide loops: what warps share that bring rows themselves, some of each block's rows each.
#pragma once

#include "kernels/ptx/async_copy.h"
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

/// The same where rows are copied as they are, by cp.async.
template <Config C, int rows_of_warp>
class CopiedRowsFeeder : protected WideRowFeeder<C, rows_of_warp> {
  using Base = WideRowFeeder<C, rows_of_warp>;

 protected:
  using Base::context_, Base::first_, Base::warp_, Base::lane_, Base::row_, Base::number_;
  using Base::first_row, Base::piece, Base::read_number, Base::of_row;
  using Base::kRowsAtOnce, Base::kRowsOfLane, Base::kPanelBytes;

  /// This lane's pieces of a block's rows in one tensor, counted in pieces, or kNone.
  struct RowPieces {
    static constexpr unsigned kNone = ~0U;
    unsigned at[kRowsOfLane];
  };

  __device__ __forceinline__ CopiedRowsFeeder(const Context<C>& context, int warp, int first)
      : Base(context, warp, first),
        to_(static_cast<uint32_t>(__cvta_generic_to_shared(context.smem)) +
            piece_offset(first_ + first_row(), piece())) {}

  /// begin_tile(work) of every tile of this CTA, then of each of its blocks find_rows(head) and feed_block(). A block's
  /// pages are read when the block before is being copied.
  template <typename BeginTile, typename FindRows, typename FeedBlock>
  __device__ __forceinline__ void for_each_block(const BeginTile& begin_tile, const FindRows& find_rows,
                                                 const FeedBlock& feed_block) {
    KeyCursor<C> cursor(context_.params, context_.schedule);
    bool exists = cursor.next();
    if (exists) {
      read_number(cursor);
    }
    while (exists) {
      if (cursor.begins_tile()) {
        begin_tile(cursor.work());
      }
      find_rows(cursor.head());
      exists = cursor.next();
      if (exists) {
        read_number(cursor);
      }
      feed_block();
    }
    ptx::cp_async_wait_all();
  }

  /// A tile's Q by TMA: its first columns through a ring to registers, `columns` at a time, which
  /// load(first, stage, full) loads; the others to stay in shared memory.
  template <int columns, int stages, typename Load>
  __device__ __forceinline__ void feed_queries_through(RingPosition<stages>& at, uint64_t (&full)[stages],
                                                       uint64_t (&empty)[stages], const TileWork& work,
                                                       const Load& load) {
#pragma unroll 1
    for (int first = 0; first < C.register_columns; first += columns) {
      wait<C>(empty[at.stage], at.parity);
      if (warp_ == 0 && lane_ == 0) {
        load(first, at.stage, full[at.stage]);
      } else {
        cuda::ptx::mbarrier_arrive(&full[at.stage]);
      }
      at.advance();
    }
    if constexpr (C.register_columns < C.head_dim) {
      this->feed_shared_queries(work);
    }
  }

  /// Where the row that this lane finds lies in a tensor.
  __device__ __forceinline__ unsigned row_of(const Rows& rows, int head) const {
    const CacheParams& cache = context_.params.cache;
    const int entry = existing(cache, number_);
    const int row = cache.by_page_size.remainder(row_);
    return entry == kNoEntry ? RowPieces::kNone
                             : static_cast<unsigned>(rows.offset(entry, row, head) / (kPieceBytes / 2));
  }

  /// Where this lane's pieces lie, each lane saying where its row is.
  __device__ __forceinline__ RowPieces pieces_of(unsigned own) const {
    RowPieces pieces;
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      const unsigned at = of_row(i, own);
      pieces.at[i] = at == RowPieces::kNone ? at : at + piece();
    }
    return pieces;
  }

  /// Panels from column `first` on, to offset `stage` of shared memory. Rows that do not exist become zeros, and so do
  /// `bounded` columns from `columns` on.
  template <int count, bool bounded = false>
  __device__ __forceinline__ void copy(const Rows& tensor, const RowPieces& rows, int first, int stage,
                                       int columns = 0) const {
    const auto* const data = reinterpret_cast<const unsigned char*>(tensor.data) + 2 * first;
    const int left = columns - first - piece() * (kPieceBytes / 2);
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      const bool has_row = rows.at[i] != RowPieces::kNone;
      const unsigned char* const from = data + (has_row ? static_cast<long long>(rows.at[i]) * kPieceBytes : 0);
      const uint32_t to = (i % 2 == 0 ? to_ : (to_ + kRowsAtOnce * kPanelRowBytes) ^ kOtherHalf) + stage;
#pragma unroll
      for (int panel = 0; panel < count; ++panel) {
        const bool exists = has_row && (!bounded || panel * kPanelColumns < left);
        ptx::cp_async_16(to + i / 2 * kAtomBytes + panel * kPanelBytes, from + (exists ? panel * kPanelRowBytes : 0),
                         exists ? kPieceBytes : 0);
      }
    }
  }

  /// Debug variants wait for the copies: racecheck does not know arrivals that follow from copies.
  __device__ __forceinline__ static void arrive_when_copied(uint64_t& full) {
    if constexpr (C.debug) {
      ptx::cp_async_wait_all();
      cuda::ptx::mbarrier_arrive(&full);
    } else {
      ptx::cp_async_arrive(full);
    }
  }

 private:
  static constexpr int kAtomBytes = kPanelPieces * kPanelRowBytes;
  static constexpr uint32_t kOtherHalf = kPanelRowBytes / 2;  // of a row, where the swizzle puts the row four behind
  static_assert(kPanelPieces == 2 * kRowsAtOnce && piece_offset(kRowsAtOnce, 0) % kPanelRowBytes == kOtherHalf);

  const uint32_t to_;  // of the first row, in stage 0 of what lies at the beginning
};

}  // namespace strobe::sm90::forward
