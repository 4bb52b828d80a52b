// SPDX-License-Identifier: Apache-2.0
// In which steps the producers of wide loops convert a block's rows in a format, and how many of them a lane loads
// ahead. The order is that in which consumers take a block: the panel behind V's columns, if there is one, then V's.
#pragma once

#include "kernels/sequence/stored_pieces.h"
#include "kernels/sm90/forward/smem.h"

namespace strobe::sm90::forward {

template <Config C>
struct FormatSteps {
  static constexpr int kPanels = panels(C.head_dim);
  static constexpr int kRowsOfWarp = C.block_n / (kFormatRowWarps * cluster_ctas(C));  // CTAs of a pair share a block
  static constexpr int kRowsOfPanel = kRowsOfWarp / (kWarpSize / kPanelPieces);        // of a lane

  __device__ __forceinline__ static constexpr ColumnRange columns_of_panel(int order) {
    constexpr int kValuePanels = panels(C.head_dim_v);
    constexpr int kBehind = kPanels - kValuePanels;
    static_assert(kBehind <= 1);
    return {(order < kBehind ? kValuePanels : order - kBehind) * kPanelColumns, kPanelColumns};
  }

  /// Registers that a row of a panel takes.
  __device__ __forceinline__ static constexpr int words_of_row(int order) {
    for (int part = 0; part < C.format.part_count; ++part) {
      if (has_columns(C.format, part, columns_of_panel(order))) {
        const StoredPart own = part_of(C.format, part);
        const bool has_scale = own.scale != StoredScale::none && own.scale_offset != kScaleApart;
        return piece_bytes(own.element) / 4 + (has_scale ? 1 : 0);
      }
    }
    return piece_words(C.format) + 1;
  }

  /// Registers for what is on its way, as compiling shows.
  static constexpr int kMostWords = piece_bytes(part_of(C.format, 0).element) == kPieceBytes ? 20 : 24;

  /// More steps on their way are no faster, but spill. log: wide-rows-panels
  static constexpr int kMostAhead = 3;
  static constexpr int kOfPanel = has_scales_apart(C.format) || C.in_pairs ? 1 : 2;
  static constexpr int kCount = kPanels * kOfPanel;
  static constexpr int kRows = kRowsOfPanel / kOfPanel;  // of a lane

  __device__ __forceinline__ static constexpr ColumnRange columns_at(int step) {
    return columns_of_panel(step / kOfPanel);
  }

  /// The most registers that so many steps in a row take, over blocks.
  __device__ __forceinline__ static constexpr int words_of(int steps) {
    int most = 0;
    for (int first = 0; first < kCount; ++first) {
      int words = 0;
      for (int step = first; step < first + steps; ++step) {
        words += kRows * words_of_row(step % kCount / kOfPanel);
      }
      most = words > most ? words : most;
    }
    return most;
  }

  /// Steps that are loaded before the first of them is converted: a divisor of a block's, so that a step has the same
  /// registers in every block.
  __device__ __forceinline__ static constexpr int ahead() {
    int steps = 1;
    for (int more = 2; more <= kMostAhead; ++more) {
      if (kCount % more == 0 && words_of(more) <= kMostWords) {
        steps = more;
      }
    }
    return steps;
  }
};

}  // namespace strobe::sm90::forward
