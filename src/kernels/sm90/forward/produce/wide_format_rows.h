// SPDX-License-Identifier: Apache-2.0
// Wide loops whose V is K's first columns: rows of K in any format, which producers read as they are stored, convert,
// and store where TMA would have written them.
#pragma once

#include "kernels/ptx/async_copy.h"
#include "kernels/sequence/stored_pieces.h"
#include "kernels/sm90/forward/produce/format_steps.h"
#include "kernels/sm90/forward/produce/pages.h"
#include "kernels/sm90/forward/produce/query.h"

namespace strobe::sm90::forward {

/// Rows that do not exist are read here, as zeros of every format are zeros: the compiler waits at once for what is
/// loaded under a condition, to choose between that and zeros.
template <int bytes>
__device__ const uint4 kNoRow[(bytes + sizeof(uint4) - 1) / sizeof(uint4)] = {};

/// One of kFormatRowWarps warps, which converts rows of its own. Eight lanes have the eight pieces of a panel's row, a
/// lane always those of the same rows.
///
/// A block is converted in steps of a panel's rows, or of half of them. As many steps are loaded ahead, over blocks and
/// tiles, as registers hold, and the rows of the next block are on their way to L2 by then.
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
    Step steps[kStepsAhead];
    read_number(cursor, exists);
    row_ = find_row();
    load_first<0>(steps);
    while (exists) {
      if (cursor.tiles() != tiles) {
        tiles = cursor.tiles();
        feed_queries(cursor.work());
        if constexpr (has_scales_apart(kFormat)) {
          scale_ = sequence::scale_apart(context_.params.format, sequence_);
        }
      }
      exists = cursor.next();
      read_number(cursor, exists);
      feed_block<0>(steps);
    }
  }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);
  static constexpr StoredFormat kFormat = C.format;
  static constexpr int kRowsAtOnce = kWarpSize / kPanelPieces;
  static constexpr int kRowsOfWarp = C.block_n / kFormatRowWarps;
  static constexpr int kEach = FormatSteps<C>::kRows;  // rows of a lane in a step
  static constexpr int kSteps = FormatSteps<C>::kCount;
  static constexpr int kStepsAhead = FormatSteps<C>::ahead();
  static constexpr int kPanelBytes = tile_bytes(C.block_n, kPanelColumns);
  static_assert(columns_of(kFormat) == C.head_dim && C.values_in_keys);
  static_assert(kWarpSize % kRowsOfWarp == 0);
  // P V of a block begins when the scores of the next are issued.
  static_assert(C.stages >= 2 * C.head_dim_v / kSharedColumns);
  static_assert(C.q_stages == 1 && C.consumer_warpgroups == 1 && C.register_columns == 0);

  /// This lane's pieces of some rows of a panel.
  struct Step {
    StoredPiece<kFormat> pieces[kEach];
  };

  /// Of the block.
  __device__ __forceinline__ int first_row() const { return warp_ * kRowsOfWarp + lane_ / kPanelPieces; }
  __device__ __forceinline__ int piece() const { return lane_ % kPanelPieces; }

  /// Where there is no other block, of a row that does not exist, so that no load is under a condition.
  __device__ __forceinline__ void read_number(const KeyCursor<C>& cursor, bool exists) {
    if (!exists) {
      number_ = kNoEntry;
      return;
    }
    const int row = cursor.work().k.start + cursor.block() * C.block_n + warp_ * kRowsOfWarp + lane_ % kRowsOfWarp;
    const int end = cursor.work().k.start + cursor.work().k.used;
    sequence_ = cursor.work().tile.sequence;
    in_sequence_ = row;
    number_ = row < end ? page_number(context_.params.cache, sequence_, row) : kNoEntry;
  }

  __device__ __forceinline__ StoredRow find_row() const {
    const StoredRow row =
        sequence::format_row<kFormat>(context_.params.cache, context_.params.format, number_, sequence_, in_sequence_);
    const auto* const zeros = reinterpret_cast<const unsigned char*>(kNoRow<kFormat.row_bytes>);
    return row.body == nullptr ? StoredRow{zeros, zeros} : row;
  }

  /// The row whose number was read last, to L2: two lanes have every second line of it.
  __device__ __forceinline__ void prefetch_row() const {
    constexpr int kLine = 128;
    constexpr int kBodyBytes = kFormat.row_bytes - kFormat.tail_bytes;
    constexpr int kLanes = kWarpSize / kRowsOfWarp;
    const StoredRow row = find_row();
#pragma unroll
    for (int line = 0; line < kBodyBytes + kLine - 1; line += kLanes * kLine) {  // one more, as rows begin anywhere
      ptx::prefetch_l2(row.body + min(line + lane_ / kRowsOfWarp * kLine, kBodyBytes - 1));
    }
    if constexpr (kFormat.tail_bytes > 0) {
      ptx::prefetch_l2(row.tail);
    }
  }

  /// Another lane's.
  __device__ __forceinline__ static const unsigned char* address_of(const unsigned char* own, int lane) {
    return reinterpret_cast<const unsigned char*>(
        __shfl_sync(kFullWarp, reinterpret_cast<unsigned long long>(own), lane));
  }

  /// The i-th row of a lane in a step, counted from the lane's first.
  __device__ __forceinline__ static constexpr int row_at(int step, int i) {
    return (step % FormatSteps<C>::kOfPanel * kEach + i) * kRowsAtOnce;
  }

  template <int step>
  __device__ __forceinline__ void load(Step& to) const {
    constexpr ColumnRange kColumns = FormatSteps<C>::columns_at(step);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int from = row_at(step, i) + lane_ / kPanelPieces;
      StoredRow row{address_of(row_.body, from), nullptr};
      if constexpr (kFormat.tail_bytes > 0) {
        row.tail = address_of(row_.tail, from);
      }
      to.pieces[i] = load_piece<kFormat, kColumns>(row, kColumns.first + piece() * kPieceColumns);
    }
  }

  template <int step>
  __device__ __forceinline__ void load_first(Step (&steps)[kStepsAhead]) const {
    load<step>(steps[step]);
    if constexpr (step + 1 < kStepsAhead) {
      load_first<step + 1>(steps);
    }
  }

  /// The step that has the registers of this one next: of this block, or of the next one.
  template <int step>
  __device__ __forceinline__ void load_next(Step& to) {
    constexpr int kNext = step + kStepsAhead;
    if constexpr (kNext < kSteps) {
      load<kNext>(to);
    } else {
      if constexpr (kNext == kSteps) {
        row_ = find_row();
      }
      load<kNext - kSteps>(to);
    }
  }

  template <int step>
  __device__ __forceinline__ void store(const Step& from, unsigned char* to) const {
    constexpr ColumnRange kColumns = FormatSteps<C>::columns_at(step);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      StoredPiece<kFormat> stored = from.pieces[i];
      if constexpr (has_scales_apart(kFormat)) {
        stored.scale = scale_;
      }
      *reinterpret_cast<uint4*>(to + piece_offset(first_row() + row_at(step, i), piece())) =
          packed_piece<C.rule.element, kFormat, kColumns>(stored, kColumns.first + piece() * kPieceColumns);
    }
  }

  /// What was stored goes to the consumers, who fence before their WGMMAs read it: a fence here would wait for loads.
  __device__ __forceinline__ static void publish(uint64_t& full) {
    __syncwarp();
    arrive<C>(full);
  }

  /// A step of the panel behind V's, in a stage of its own.
  template <int step>
  __device__ __forceinline__ void feed_behind(const Step& from) {
    if constexpr (step % FormatSteps<C>::kOfPanel == 0) {
      wait<C>(context_.barriers.k_empty[behind_at_.stage], behind_at_.parity);
    }
    store<step>(from, context_.smem + kPlan.k + behind_at_.stage * kPlan.k_bytes);
    if constexpr ((step + 1) % FormatSteps<C>::kOfPanel == 0) {
      publish(context_.barriers.k_full[behind_at_.stage]);
      behind_at_.advance();
    }
  }

  /// A step of V's columns, of which a stage has several panels.
  template <int step>
  __device__ __forceinline__ void feed_shared(const Step& from) {
    constexpr int kInStage = FormatSteps<C>::columns_at(step).first % kSharedColumns;
    if constexpr (kInStage == 0 && step % FormatSteps<C>::kOfPanel == 0) {
      wait<C>(context_.barriers.v_empty[shared_at_.stage], shared_at_.parity);
    }
    store<step>(from,
                context_.smem + kPlan.v + shared_at_.stage * kPlan.v_bytes + kInStage / kPanelColumns * kPanelBytes);
    if constexpr (kInStage + kPanelColumns == kSharedColumns && (step + 1) % FormatSteps<C>::kOfPanel == 0) {
      publish(context_.barriers.v_full[shared_at_.stage]);
      shared_at_.advance();
    }
  }

  /// The steps of a block from this one on. The registers of each are loaded again once it is stored.
  template <int step>
  __device__ __forceinline__ void feed_block(Step (&steps)[kStepsAhead]) {
    if constexpr (step == kSteps / 2) {
      prefetch_row();
    }
    Step& own = steps[step % kStepsAhead];
    if constexpr (FormatSteps<C>::columns_at(step).first >= C.head_dim_v) {
      feed_behind<step>(own);
    } else {
      feed_shared<step>(own);
    }
    load_next<step>(own);
    if constexpr (step + 1 < kSteps) {
      feed_block<step + 1>(steps);
    }
  }

  /// A tile's Q by TMA, which stays in shared memory.
  __device__ __forceinline__ void feed_queries(const TileWork& work) {
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
  const int warp_, lane_;
  int number_;                  // of the page of this lane's row of the block after the one that is stored
  int sequence_, in_sequence_;  // that row
  unsigned scale_;              // of the tile whose blocks are stored, where formats have it apart
  StoredRow row_;               // of the block that is loaded
  RingPosition<C.key_panels> behind_at_{0, 1};
  RingPosition<C.stages> shared_at_{0, 1};
  uint32_t q_parity_ = 1;
};

}  // namespace strobe::sm90::forward
