// SPDX-License-Identifier: Apache-2.0
// Wide loops whose V is K's first columns: K out of pages row by row, by cp.async.
#pragma once

#include "kernels/ptx/async_copy.h"
#include "kernels/sm90/forward/produce/pages.h"
#include "kernels/sm90/forward/produce/query.h"

namespace strobe::sm90::forward {

/// Rows of a block in one tensor.
template <int count>
struct RowPieces {
  static constexpr unsigned kNone = ~0U;
  unsigned at[count];  // in pieces, or kNone

  __device__ __forceinline__ void find(int i, const Rows& rows, int entry, int row, int head, int piece) {
    at[i] =
        entry == kNoEntry ? kNone : static_cast<unsigned>(rows.offset(entry, row, head) / (kPieceBytes / 2)) + piece;
  }
};

/// One of kSharedRowWarps warps, which copies rows of its own. Eight lanes copy
/// 128 bytes of a row, a lane always of the same rows, whose addresses it finds once a block.
template <Config C>
class SharedRowsFeeder {
 public:
  __device__ __forceinline__ SharedRowsFeeder(const Context<C>& context, int warp)
      : context_(context), warp_(warp), lane_(threadIdx.x % kWarpSize) {
    const uint32_t smem = static_cast<uint32_t>(__cvta_generic_to_shared(context.smem));
    to_ = smem + piece_offset(first_row(), lane_ % kPanelPieces);
    other_ = smem + piece_offset(first_row() + kRowsAtOnce, lane_ % kPanelPieces);
  }

  /// Every block of every tile of this CTA. Its pages are read when the block before is being copied.
  __device__ __forceinline__ void run() {
    const Params& params = context_.params;
    KeyCursor<C> cursor(params, context_.schedule);
    int tiles = 0;
    bool exists = cursor.next();
    if (exists) {
      read_numbers(cursor);
    }
    while (exists) {
      if (cursor.tiles() != tiles) {
        tiles = cursor.tiles();
        feed_queries(cursor.work());
      }
      find_rows(cursor.head());
      exists = cursor.next();
      if (exists) {
        read_numbers(cursor);
      }
      feed_block();
    }
    ptx::cp_async_wait_all();
  }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);
  static constexpr int kRowsAtOnce = kWarpSize / kPanelPieces;
  static constexpr int kRowsOfWarp = C.block_n / kSharedRowWarps;
  static constexpr int kEach = kRowsOfWarp / kRowsAtOnce;  // rows of a lane
  static constexpr int kAtomBytes = kPanelPieces * kPanelRowBytes;
  static constexpr int kPanelBytes = tile_bytes(C.block_n, kPanelColumns);
  static_assert(kPanelPieces == 2 * kRowsAtOnce);

  __device__ __forceinline__ int first_row() const { return warp_ * kRowsOfWarp + lane_ / kPanelPieces; }

  __device__ __forceinline__ void read_numbers(const KeyCursor<C>& cursor) {
    first_ = cursor.work().k.start + cursor.block() * C.block_n + first_row();
    const int end = cursor.work().k.start + cursor.work().k.used;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = first_ + i * kRowsAtOnce;
      numbers_[i] = row < end ? page_number(context_.params.cache, cursor.work().tile.sequence, row) : kNoEntry;
    }
  }

  /// Where this lane's pieces of the rows lie, in V and, where that is another tensor, in K.
  __device__ __forceinline__ void find_rows(int head) {
    const CacheParams& cache = context_.params.cache;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int entry = existing(cache, numbers_[i]);
      const int row = cache.by_page_size.remainder(first_ + i * kRowsAtOnce);
      shared_.find(i, shared_tensor(), entry, row, head, lane_ % kPanelPieces);
      if constexpr (C.rule.query_values) {
        behind_.find(i, context_.params.k, entry, row, head, lane_ % kPanelPieces);
      }
    }
  }

  __device__ __forceinline__ const Rows& shared_tensor() const {
    return C.rule.query_values ? context_.params.v : context_.params.k;
  }

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
#pragma unroll 1
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
  __device__ __forceinline__ void copy(const Rows& tensor, const RowPieces<kEach>& rows, int first, int stage) const {
    const auto* const data = reinterpret_cast<const unsigned char*>(tensor.data) + 2 * first;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const bool exists = rows.at[i] != rows.kNone;
      const unsigned char* const from = data + (exists ? static_cast<long long>(rows.at[i]) * kPieceBytes : 0);
      const uint32_t to = (i % 2 == 0 ? to_ : other_) + stage;
#pragma unroll
      for (int panel = 0; panel < count; ++panel) {
        ptx::cp_async_16(to + i / 2 * kAtomBytes + panel * kPanelBytes, from + panel * kPanelRowBytes,
                         exists ? kPieceBytes : 0);
      }
    }
  }

  const Context<C>& context_;
  const int warp_, lane_;
  uint32_t to_, other_;  // of the first row and of the second, in stage 0 of what lies at the beginning
  int first_;            // row of the block whose numbers were read
  int numbers_[kEach];
  RowPieces<kEach> shared_, behind_;  // of V, and of K where that is another tensor
  RingPosition<C.key_panels> behind_at_{0, 1};
  RingPosition<C.stages> shared_at_{0, 1};
};

}  // namespace strobe::sm90::forward
