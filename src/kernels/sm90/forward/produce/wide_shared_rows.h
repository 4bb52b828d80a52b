// SPDX-License-Identifier: Apache-2.0
// Wide loops whose V is K's first columns: K out of pages row by row, by cp.async.
#pragma once

#include "kernels/ptx/async_copy.h"
#include "kernels/sm90/forward/produce/wide_row_feeder.h"

namespace strobe::sm90::forward {

/// One of kSharedRowWarps warps, which copies rows of its own.
template <Config C>
class SharedRowsFeeder : private WideRowFeeder<C, C.block_n / kSharedRowWarps> {
  using Base = WideRowFeeder<C, C.block_n / kSharedRowWarps>;

 public:
  __device__ __forceinline__ SharedRowsFeeder(const Context<C>& context, int warp)
      : Base(context, warp, warp * kRowsOfWarp) {
    const uint32_t smem = static_cast<uint32_t>(__cvta_generic_to_shared(context.smem));
    to_ = smem + piece_offset(first_ + first_row(), piece());
    other_ = smem + piece_offset(first_ + first_row() + kRowsAtOnce, piece());
  }

  /// Every block of every tile of this CTA. Its pages are read when the block before is being copied.
  __device__ __forceinline__ void run() {
    KeyCursor<C> cursor(context_.params, context_.schedule);
    int tiles = 0;
    bool exists = cursor.next();
    if (exists) {
      read_number(cursor);
    }
    while (exists) {
      if (cursor.tiles() != tiles) {
        tiles = cursor.tiles();
        feed_queries(cursor.work());
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

 private:
  using Base::behind_at_, Base::shared_at_;
  using Base::context_, Base::first_, Base::warp_, Base::lane_, Base::row_, Base::number_;
  using Base::first_row, Base::piece, Base::read_number, Base::of_row, Base::feed_shared_queries;
  using Base::kPlan, Base::kRowsOfWarp, Base::kRowsAtOnce, Base::kRowsOfLane, Base::kPanelBytes;

  static constexpr int kAtomBytes = kPanelPieces * kPanelRowBytes;
  static_assert(kPanelPieces == 2 * kRowsAtOnce);

  /// This lane's pieces of a block's rows in one tensor, counted in pieces, or kNone.
  struct RowPieces {
    static constexpr unsigned kNone = ~0U;
    unsigned at[kRowsOfLane];
  };

  /// Where this lane's pieces of the rows lie, in V and, where that is another tensor, in K.
  __device__ __forceinline__ void find_rows(int head) {
    const CacheParams& cache = context_.params.cache;
    const int entry = existing(cache, number_);
    const int row = cache.by_page_size.remainder(row_);
    find_rows(shared_, shared_tensor(), entry, row, head);
    if constexpr (C.rule.query_values) {
      find_rows(behind_, context_.params.k, entry, row, head);
    }
  }

  __device__ __forceinline__ void find_rows(RowPieces& pieces, const Rows& rows, int entry, int row, int head) const {
    const unsigned own =
        entry == kNoEntry ? RowPieces::kNone : static_cast<unsigned>(rows.offset(entry, row, head) / (kPieceBytes / 2));
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      const unsigned at = of_row(i, own);
      pieces.at[i] = at == RowPieces::kNone ? at : at + piece();
    }
  }

  __device__ __forceinline__ const Rows& shared_tensor() const {
    return C.rule.query_values ? context_.params.v : context_.params.k;
  }

  /// A tile's Q by TMA: its first columns through the ring to registers, the others to stay in shared memory.
  __device__ __forceinline__ void feed_queries(const TileWork& work) {
#pragma unroll 1
    for (int first = 0; first < C.register_columns; first += kSharedColumns) {
      uint64_t& full = context_.barriers.v_full[shared_at_.stage];
      wait<C>(context_.barriers.v_empty[shared_at_.stage], shared_at_.parity);
      if (warp_ == 0 && lane_ == 0) {
        load_query_piece(context_, work, first, context_.smem + kPlan.v + shared_at_.stage * kPlan.v_bytes, full);
      } else {
        cuda::ptx::mbarrier_arrive(&full);
      }
      shared_at_.advance();
    }
    if constexpr (C.register_columns < C.head_dim) {
      feed_shared_queries(work);
    }
  }

  __device__ __forceinline__ void feed_block() {
    if constexpr (C.head_dim > C.head_dim_v) {
      wait<C>(context_.barriers.k_empty[behind_at_.stage], behind_at_.parity);
      constexpr int kPanels = panels(C.head_dim - C.head_dim_v);
      const int stage = kPlan.k + behind_at_.stage * kPlan.k_bytes;
      if constexpr (C.rule.query_values) {
        copy<kPanels>(context_.params.k, behind_, 0, stage);
      } else {
        copy<kPanels>(context_.params.k, shared_, C.head_dim_v, stage);
      }
      arrive_when_copied(context_.barriers.k_full[behind_at_.stage]);
      behind_at_.advance();
    }
#pragma unroll
    for (int first = 0; first < C.head_dim_v; first += kSharedColumns) {
      wait<C>(context_.barriers.v_empty[shared_at_.stage], shared_at_.parity);
      copy<panels(kSharedColumns)>(shared_tensor(), shared_, first, kPlan.v + shared_at_.stage * kPlan.v_bytes);
      arrive_when_copied(context_.barriers.v_full[shared_at_.stage]);
      shared_at_.advance();
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

  /// Panels from column `first` on. Rows that do not exist become zeros.
  template <int count>
  __device__ __forceinline__ void copy(const Rows& tensor, const RowPieces& rows, int first, int stage) const {
    const auto* const data = reinterpret_cast<const unsigned char*>(tensor.data) + 2 * first;
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      const bool exists = rows.at[i] != RowPieces::kNone;
      const unsigned char* const from = data + (exists ? static_cast<long long>(rows.at[i]) * kPieceBytes : 0);
      const uint32_t to = (i % 2 == 0 ? to_ : other_) + stage;
#pragma unroll
      for (int panel = 0; panel < count; ++panel) {
        ptx::cp_async_16(to + i / 2 * kAtomBytes + panel * kPanelBytes, from + panel * kPanelRowBytes,
                         exists ? kPieceBytes : 0);
      }
    }
  }

  uint32_t to_, other_;  // of the first row and of the second, in stage 0 of what lies at the beginning
  RowPieces shared_;     // of V
  RowPieces behind_;     // of K where that is another tensor
};

}  // namespace strobe::sm90::forward
