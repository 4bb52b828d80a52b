// SPDX-License-Identifier: Apache-2.0
// How tiles lie in shared memory: as TMA writes them and WGMMA reads them. Plain constexpr C++, shared by host and
// device.
#pragma once

namespace strobe::sm90 {

// A tile of R rows is stored as panels of R x 128 bytes (64 elements), each in TMA's 128-byte swizzle.
inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelRowBytes = 128;

constexpr int panels(int head_dim) { return (head_dim + kPanelColumns - 1) / kPanelColumns; }
constexpr int tile_bytes(int rows, int head_dim) { return rows * panels(head_dim) * kPanelRowBytes; }

/// The column at which the last panel begins of rows of so many columns, at least one. No box begins behind it: it
/// would lie wholly outside its tensor, and of such a box TMA looks up where the map begins, which of a varlen map is
/// before the tensor, in memory that need not be mapped. So wide heads load the last panel again in the place of those
/// that do not exist, where any numbers do, and store none of them.
constexpr int last_panel(int columns) { return (columns - 1) / kPanelColumns * kPanelColumns; }

/// Where the `piece`-th 16 bytes of a panel's row lie.
inline constexpr int kPieceBytes = 16;
inline constexpr int kPanelPieces = kPanelRowBytes / kPieceBytes;
constexpr int piece_offset(int row, int piece) {
  return row * kPanelRowBytes + (piece ^ row % kPanelPieces) * kPieceBytes;
}

/// Panels that hold rows of so many bytes.
constexpr int panels_of_bytes(int row_bytes) { return (row_bytes + kPanelRowBytes - 1) / kPanelRowBytes; }

inline constexpr int kMaxSmemBytes = 227 * 1024;       // what one CTA may use on sm_90
inline constexpr int kMaxSmemBytesOfTwo = 113 * 1024;  // each of two resident ones: 1 KB a CTA is the system's

}  // namespace strobe::sm90
