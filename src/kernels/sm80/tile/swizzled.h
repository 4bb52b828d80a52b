// SPDX-License-Identifier: Apache-2.0
// How a tile lies in shared memory, so that neither cp.async's writes nor ldmatrix's reads meet in a bank. Constexpr
// C++ without std headers.
#pragma once

namespace strobe::sm80 {

constexpr int kChunkBytes = 16;   // what one lane copies, and one row of an 8 x 8 matrix
constexpr int kElementBytes = 2;  // of what tiles and copies count: 16 bits
constexpr int kChunkElements = kChunkBytes / kElementBytes;

/// Rows of `columns` 16-bit elements or halves, in panels of 64 columns, or 32 where `columns` is no multiple of 64.
/// The chunks of a panel's row are permuted by the row's number: eight rows of one column of chunks lie in different
/// banks.
template <int rows, int columns>
struct Swizzled {
  static constexpr int kPanelColumns = columns % 64 == 0 ? 64 : 32;
  static constexpr int kPanels = columns / kPanelColumns;
  static constexpr int kChunks = kPanelColumns / kChunkElements;  // of a panel's row
  static constexpr int kRowBytes = kChunks * kChunkBytes;
  static constexpr int kPanelBytes = rows * kRowBytes;
  static constexpr int kBytes = kPanels * kPanelBytes;
  static_assert(columns % kPanelColumns == 0 && rows % 8 == 0);

  /// The offset of a chunk of the first panel. Rows that are eight apart are permuted alike.
  static constexpr int offset(int row, int chunk) {
    const int permutation = kChunks == 8 ? row % 8 : row / 2 % 4;
    return row * kRowBytes + (chunk ^ permutation) * kChunkBytes;
  }

  /// `first`: the address of chunk 0 or 1 of some row. The address of the chunk that is 2 * pair after it, in whichever
  /// panel that is.
  static constexpr unsigned pair_after(unsigned first, int pair) {
    constexpr int kPairs = kChunks / 2;
    return (first ^ static_cast<unsigned>(pair % kPairs * 2 * kChunkBytes)) +
           static_cast<unsigned>(pair / kPairs * kPanelBytes);
  }
};

}  // namespace strobe::sm80
