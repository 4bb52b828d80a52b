// SPDX-License-Identifier: Apache-2.0
// Wide loops whose V is K's first columns: rows of K in any format, which producers read as they are stored, convert,
// and store where TMA would have written them.
#pragma once

#include "kernels/ptx/async_copy.h"
#include "kernels/sequence/stored_pieces.h"
#include "kernels/sm90/forward/produce/pages.h"
#include "kernels/sm90/forward/produce/query.h"

namespace strobe::sm90::forward {

/// One of kFormatRowWarps warps, which converts rows of its own. Eight lanes have the eight pieces of a panel's row, a
/// lane always those of the same rows.
///
/// A lane's pieces of one panel are loaded before those of the panel before are converted, over blocks and tiles, where
/// registers hold both; and the rows of the next block are on their way to L2 by then.
template <Config C>
class FormatRowsFeeder {
 public:
  __device__ __forceinline__ FormatRowsFeeder(const Context<C>& context, int warp)
      : context_(context), warp_(warp), lane_(threadIdx.x % kWarpSize) {}

  /// Every block of every tile of this CTA.
  __device__ __forceinline__ void run() {
    KeyCursor<C> cursor(context_.params, context_.schedule);
    int tiles = 0;
    bool exists = cursor.next();
    Panel panel;
    if (exists) {
      read_number(cursor);
      row_ = find_row();
      load_ahead<0>(panel);
    }
    while (exists) {
      if (cursor.tiles() != tiles) {
        tiles = cursor.tiles();
        feed_queries(cursor.work());
      }
      exists = cursor.next();
      if (exists) {
        read_number(cursor);
      }
      feed_block<0>(panel, exists);
    }
  }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);
  static constexpr StoredFormat kFormat = C.format;
  static constexpr int kRowsAtOnce = kWarpSize / kPanelPieces;
  static constexpr int kRowsOfWarp = C.block_n / kFormatRowWarps;
  static constexpr int kEach = kRowsOfWarp / kRowsAtOnce;  // rows of a lane
  static constexpr int kPanels = panels(C.head_dim);
  static constexpr int kValuePanels = panels(C.head_dim_v);
  static constexpr int kPanelBytes = tile_bytes(C.block_n, kPanelColumns);
  static_assert(columns_of(kFormat) == C.head_dim && kPanels - kValuePanels <= 1 && C.values_in_keys);
  static_assert(kWarpSize % kRowsOfWarp == 0);
  // P V of a block begins when the scores of the next are issued.
  static_assert(C.stages >= 2 * C.head_dim_v / kSharedColumns);
  static_assert(C.q_stages == 1 && C.consumer_warpgroups == 1 && C.register_columns == 0);

  /// This lane's pieces of a panel.
  struct Panel {
    StoredPiece<kFormat> pieces[kEach];
  };

  /// The columns of the panel that comes in that order: the one behind V's, if there is one, and then those of V.
  __device__ __forceinline__ static constexpr ColumnRange columns_at(int order) {
    constexpr int kBehind = kPanels - kValuePanels;
    return {(order < kBehind ? kValuePanels : order - kBehind) * kPanelColumns, kPanelColumns};
  }

  /// Registers that a piece of a panel takes.
  __device__ __forceinline__ static constexpr int words_at(int order) {
    for (int part = 0; part < kFormat.part_count; ++part) {
      if (has_columns(kFormat, part, columns_at(order))) {
        const StoredPart own = part_of(kFormat, part);
        return piece_bytes(own.element) / 4 + (own.scale == StoredScale::none ? 0 : 1);
      }
    }
    return piece_words(kFormat) + 1;
  }

  /// Whether a panel is loaded before the one before it is converted.
  __device__ __forceinline__ static constexpr bool is_ahead(int order) {
    constexpr int kMostWords = 7;  // as compiling shows
    return words_at(order) + words_at((order + kPanels - 1) % kPanels) <= kMostWords;
  }

  /// Of the block.
  __device__ __forceinline__ int first_row() const { return warp_ * kRowsOfWarp + lane_ / kPanelPieces; }
  __device__ __forceinline__ int piece() const { return lane_ % kPanelPieces; }

  __device__ __forceinline__ void read_number(const KeyCursor<C>& cursor) {
    const int row = cursor.work().k.start + cursor.block() * C.block_n + warp_ * kRowsOfWarp + lane_ % kRowsOfWarp;
    const int end = cursor.work().k.start + cursor.work().k.used;
    number_ = row < end ? page_number(context_.params.cache, cursor.work().tile.sequence, row) : kNoEntry;
  }

  /// Without an address where it does not exist.
  __device__ __forceinline__ StoredRow find_row() const {
    const int place = existing(context_.params.cache, number_);
    return place == kNoEntry ? StoredRow{nullptr, nullptr} : context_.params.rows.template row<kFormat>(place, 0);
  }

  /// The row whose number was read last, to L2: two lanes have every second line of it.
  __device__ __forceinline__ void prefetch_row() const {
    constexpr int kLine = 128;
    constexpr int kBodyBytes = kFormat.row_bytes - kFormat.tail_bytes;
    constexpr int kLanes = kWarpSize / kRowsOfWarp;
    const StoredRow row = find_row();
    if (row.body != nullptr) {
#pragma unroll
      for (int line = 0; line < kBodyBytes + kLine - 1; line += kLanes * kLine) {  // one more, as rows begin anywhere
        ptx::prefetch_l2(row.body + min(line + lane_ / kRowsOfWarp * kLine, kBodyBytes - 1));
      }
      if constexpr (kFormat.tail_bytes > 0) {
        ptx::prefetch_l2(row.tail);
      }
    }
  }

  /// Another lane's.
  __device__ __forceinline__ static const unsigned char* address_of(const unsigned char* own, int lane) {
    return reinterpret_cast<const unsigned char*>(
        __shfl_sync(kFullWarp, reinterpret_cast<unsigned long long>(own), lane));
  }

  template <int order>
  __device__ __forceinline__ void load(Panel& panel) const {
    constexpr ColumnRange kColumns = columns_at(order);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int from = i * kRowsAtOnce + lane_ / kPanelPieces;
      StoredRow row{address_of(row_.body, from), nullptr};
      if constexpr (kFormat.tail_bytes > 0) {
        row.tail = address_of(row_.tail, from);
      }
      // Zeros of every format are zeros: rows that do not exist become them.
      panel.pieces[i] = StoredPiece<kFormat>{};
      if (row.body != nullptr) {
        panel.pieces[i] = load_piece<kFormat, kColumns>(row, kColumns.first + piece() * kPieceColumns);
      }
    }
  }

  template <int order>
  __device__ __forceinline__ void load_ahead(Panel& panel) const {
    if constexpr (is_ahead(order)) {
      load<order>(panel);
    }
  }

  template <int order>
  __device__ __forceinline__ void store(const Panel& panel, unsigned char* to) const {
    constexpr ColumnRange kColumns = columns_at(order);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      *reinterpret_cast<uint4*>(to + piece_offset(first_row() + i * kRowsAtOnce, piece())) =
          packed_piece<C.rule.element, kFormat, kColumns>(panel.pieces[i], kColumns.first + piece() * kPieceColumns);
    }
  }

  /// What was stored goes to the consumers, whose WGMMAs read it.
  __device__ __forceinline__ static void publish(uint64_t& full) {
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    __syncwarp();
    arrive<C>(full);
  }

  /// The panels of a block from this one on, which is loaded if it is_ahead(); then the first one of the next block is,
  /// if there is one.
  template <int order>
  __device__ __forceinline__ void feed_block(Panel& panel, bool has_next) {
    if constexpr (!is_ahead(order)) {
      load<order>(panel);
    }
    Panel next;
    if constexpr (order + 1 < kPanels) {
      load_ahead<order + 1>(next);
    } else if (has_next) {
      row_ = find_row();
      load_ahead<0>(next);
    }
    if (order == kPanels / 2 && has_next) {
      prefetch_row();
    }
    constexpr int kFirst = columns_at(order).first;
    if constexpr (kFirst >= C.head_dim_v) {
      wait<C>(context_.barriers.k_empty[behind_at_.stage], behind_at_.parity);
      store<order>(panel, context_.smem + kPlan.k + behind_at_.stage * kPlan.k_bytes);
      publish(context_.barriers.k_full[behind_at_.stage]);
      behind_at_.advance();
    } else {
      constexpr int kInStage = kFirst % kSharedColumns;
      if constexpr (kInStage == 0) {
        wait<C>(context_.barriers.v_empty[shared_at_.stage], shared_at_.parity);
      }
      store<order>(panel,
                   context_.smem + kPlan.v + shared_at_.stage * kPlan.v_bytes + kInStage / kPanelColumns * kPanelBytes);
      if constexpr (kInStage + kPanelColumns == kSharedColumns) {
        publish(context_.barriers.v_full[shared_at_.stage]);
        shared_at_.advance();
      }
    }
    if constexpr (order + 1 < kPanels) {
      feed_block<order + 1>(next, has_next);
    }
    panel = next;
  }

  /// A tile's Q by TMA, which stays in shared memory.
  __device__ __forceinline__ void feed_queries(const TileWork& work) {
    if (warp_ == 0) {
      wait<C>(context_.barriers.q_empty[0][0], q_parity_);
      if (lane_ == 0) {
        load_queries(context_, work, context_.smem + kPlan.q, context_.barriers.q_full[0][0]);
      }
      __syncwarp();
      q_parity_ ^= 1U;
    }
  }

  const Context<C>& context_;
  const int warp_, lane_;
  int number_;     // of this lane's row of the block after the one that is stored
  StoredRow row_;  // of the block that is loaded
  RingPosition<C.key_panels> behind_at_{0, 1};
  RingPosition<C.stages> shared_at_{0, 1};
  uint32_t q_parity_ = 1;
};

}  // namespace strobe::sm90::forward
