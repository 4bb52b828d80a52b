// SPDX-License-Identifier: Apache-2.0
// Wide loops whose V is K's first columns: rows of K in any format, which producers read as they are stored, convert,
// and store where TMA would have written them.
#pragma once

#include "kernels/ptx/async_copy.h"
#include "kernels/sequence/stored_pieces.h"
#include "kernels/sm90/forward/produce/format_steps.h"
#include "kernels/sm90/forward/produce/wide_row_feeder.h"
#include "kernels/sm90/tile/pair.h"

namespace strobe::sm90::forward {

/// Rows that do not exist are read here, as zeros of every format are zeros: the compiler waits at once for what is
/// loaded under a condition, to choose between that and zeros.
template <int bytes>
__device__ const uint4 kNoRow[(bytes + sizeof(uint4) - 1) / sizeof(uint4)] = {};

/// One of kFormatRowWarps warps, which converts rows of its own, for both CTAs of a pair.
///
/// A block is converted in steps of a panel's rows, or of half of them. As many steps are loaded ahead, over blocks and
/// tiles, as registers hold, and the rows of the next block are on their way to L2 by then.
template <Config C>
class FormatRowsFeeder : private WideRowFeeder<C, FormatSteps<C>::kRowsOfWarp> {
  using Base = WideRowFeeder<C, FormatSteps<C>::kRowsOfWarp>;

 public:
  __device__ __forceinline__ FormatRowsFeeder(const Context<C>& context, int warp)
      : Base(context, warp, ((C.in_pairs ? rank_in_pair() * kFormatRowWarps : 0) + warp) * kRowsOfWarp) {
    if constexpr (C.in_pairs) {
      peer_ = ptx::map_shared(context.smem, rank_in_pair() ^ 1);
    }
  }

  /// Every block of every tile of this CTA.
  __device__ __forceinline__ void run() {
    KeyCursor<C> cursor(context_.params, context_.schedule);
    int tiles = 0;
    bool exists = cursor.next();
    Step steps[kStepsAhead];
    if (exists) {
      read_number(cursor);
    }
    found_ = find_row();
    share_rows();
    load_first<0>(steps);
    while (exists) {
      if (cursor.tiles() != tiles) {  // not begins_tile(), with which a variant spills
        tiles = cursor.tiles();
        feed_shared_queries(cursor.work());
        if constexpr (has_scales_apart(kFormat)) {
          scale_ = sequence::scale_apart(context_.params.format, sequence_);
        }
      }
      exists = cursor.next();
      if (exists) {
        read_number(cursor);
      } else {
        number_ = kNoEntry;  // so that no load is under a condition
      }
      feed_block<0>(steps);
    }
  }

 private:
  using Base::context_, Base::first_, Base::lane_, Base::row_, Base::sequence_, Base::number_, Base::k_at_, Base::v_at_;
  using Base::first_row, Base::piece, Base::read_number, Base::of_row, Base::feed_shared_queries;
  using Base::kPlan, Base::kRowsOfWarp, Base::kRowsAtOnce, Base::kRowsOfLane, Base::kPanelBytes;

  static constexpr StoredFormat kFormat = C.format;
  static constexpr int kEach = FormatSteps<C>::kRows;  // rows of a lane in a step
  static constexpr int kSteps = FormatSteps<C>::kCount;
  static constexpr int kStepsAhead = FormatSteps<C>::ahead();
  static constexpr int kFindStep = kSteps / 2;  // of a block, where the rows of the next one are found
  static_assert(kStepsAhead < kSteps - kFindStep);
  static_assert(columns_of(kFormat) == C.head_dim && C.register_columns == 0);
  // P V of a block begins when the scores of the next are issued.
  static_assert(C.stages >= 2 * C.head_dim_v / kSharedColumns);

  /// This lane's pieces of some rows of a panel.
  struct Step {
    StoredPiece<kFormat> pieces[kEach];
  };

  __device__ __forceinline__ StoredRow find_row() const {
    const StoredRow row =
        sequence::format_row<kFormat>(context_.params.cache, context_.params.format, number_, sequence_, row_);
    const auto* const zeros = reinterpret_cast<const unsigned char*>(kNoRow<kFormat.row_bytes>);
    return row.body == nullptr ? StoredRow{zeros, zeros} : row;
  }

  /// The row whose number was read last, to L2. Several lanes have it, and take turns at its lines.
  __device__ __forceinline__ void prefetch_row() {
    constexpr int kLine = 128;
    constexpr int kBodyBytes = kFormat.row_bytes - kFormat.tail_bytes;
    constexpr int kLanes = kWarpSize / kRowsOfWarp;
    found_ = find_row();
#pragma unroll
    for (int line = 0; line < kBodyBytes + kLine - 1; line += kLanes * kLine) {  // one more, as rows begin anywhere
      ptx::prefetch_l2(found_.body + min(line + lane_ / kRowsOfWarp * kLine, kBodyBytes - 1));
    }
    if constexpr (kFormat.tail_bytes > 0) {
      ptx::prefetch_l2(found_.tail);
    }
  }

  /// Where this lane's rows of the next block lie: each was found by one lane of the warp.
  __device__ __forceinline__ void share_rows() {
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      rows_[i] = reinterpret_cast<const unsigned char*>(of_row(i, reinterpret_cast<unsigned long long>(found_.body)));
      if constexpr (kFormat.tail_bytes > 0) {
        tails_[i] = of_row(i, static_cast<int>(found_.tail - found_.body));
      }
    }
  }

  /// Which of a lane's rows is the i-th of a step.
  __device__ __forceinline__ static constexpr int row_at(int step, int i) {
    return step % FormatSteps<C>::kOfPanel * kEach + i;
  }

  template <int step>
  __device__ __forceinline__ void load(Step& to) const {
    constexpr ColumnRange kColumns = FormatSteps<C>::columns_at(step);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int own = row_at(step, i);
      const StoredRow row{rows_[own], kFormat.tail_bytes > 0 ? rows_[own] + tails_[own] : nullptr};
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
        share_rows();
      }
      load<kNext - kSteps>(to);
    }
  }

  /// To byte `to` of shared memory, of the other CTA of a pair, too.
  template <int step>
  __device__ __forceinline__ void store(const Step& from, int to, uint64_t& full) const {
    constexpr ColumnRange kColumns = FormatSteps<C>::columns_at(step);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = first_ + first_row() + row_at(step, i) * kRowsAtOnce;
      const int at = to + piece_offset(row, piece());
      StoredPiece<kFormat> stored = from.pieces[i];
      if constexpr (has_scales_apart(kFormat)) {
        stored.scale = scale_;
      }
      const uint4 converted =
          packed_piece<C.rule.element, kFormat, kColumns>(stored, kColumns.first + piece() * kPieceColumns);
      *reinterpret_cast<uint4*>(context_.smem + at) = converted;
      if constexpr (C.in_pairs) {
        ptx::st_async_v4(peer_ + at, converted, ptx::map_shared(&full, rank_in_pair() ^ 1));
      }
    }
  }

  /// What was stored, of so many panels, goes to the consumers, who fence before their WGMMAs read it: a fence here
  /// would wait for loads.
  template <int panels>
  __device__ __forceinline__ void publish(uint64_t& full) const {
    __syncwarp();
    if (C.in_pairs && lane_ == 0) {
      expect(full, panels * kRowsOfWarp * kPanelRowBytes);
    } else if (!C.in_pairs || C.debug) {
      arrive<C>(full);
    }
  }

  /// A step of the panel behind V's, in a stage of its own.
  template <int step>
  __device__ __forceinline__ void feed_behind(const Step& from) {
    if constexpr (step % FormatSteps<C>::kOfPanel == 0) {
      wait<C>(context_.barriers.k_empty[k_at_.stage], k_at_.parity);
    }
    uint64_t& full = context_.barriers.k_full[k_at_.stage];
    store<step>(from, kPlan.k + k_at_.stage * kPlan.k_bytes, full);
    if constexpr ((step + 1) % FormatSteps<C>::kOfPanel == 0) {
      publish<1>(full);
      k_at_.advance();
    }
  }

  /// A step of V's columns, of which a stage has several panels.
  template <int step>
  __device__ __forceinline__ void feed_shared(const Step& from) {
    constexpr int kInStage = FormatSteps<C>::columns_at(step).first % kSharedColumns;
    if constexpr (kInStage == 0 && step % FormatSteps<C>::kOfPanel == 0) {
      wait<C>(context_.barriers.v_empty[v_at_.stage], v_at_.parity);
    }
    uint64_t& full = context_.barriers.v_full[v_at_.stage];
    store<step>(from, kPlan.v + v_at_.stage * kPlan.v_bytes + kInStage / kPanelColumns * kPanelBytes, full);
    if constexpr (kInStage + kPanelColumns == kSharedColumns && (step + 1) % FormatSteps<C>::kOfPanel == 0) {
      publish<panels(kSharedColumns)>(full);
      v_at_.advance();
    }
  }

  /// The steps of a block from this one on. The registers of each are loaded again once it is stored.
  template <int step>
  __device__ __forceinline__ void feed_block(Step (&steps)[kStepsAhead]) {
    if constexpr (step == kFindStep) {
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

  uint32_t peer_;                           // where the other CTA's shared memory begins
  unsigned scale_;                          // of the tile whose blocks are stored, where formats have it apart
  StoredRow found_;                         // the row whose number was read last
  const unsigned char* rows_[kRowsOfLane];  // that this lane reads, of the block that is loaded
  int tails_[kRowsOfLane];                  // from there to their tails, where formats have them: less than 2 GiB
};

}  // namespace strobe::sm90::forward
