// SPDX-License-Identifier: Apache-2.0
// Shared memory in which kernels keep values of a text. Plain constexpr C++ without std headers, shared by host and
// device.
#pragma once

#include "kernels/score/rule.h"

namespace strobe {

/// Of heads of up to so many columns kernels have shared memory for values of a text.
inline constexpr int kMostTextColumns = 128;

/// Lines of a fragment, columns or diagonals, of which warps find values: 32 at a time.
constexpr int text_lines(int count) { return (count + 31) / 32 * 32; }
constexpr int text_diagonals(int columns, int rows) { return columns + rows - 1; }

/// Words in which values of a fragment's columns and diagonals are kept.
constexpr int text_line_words(const TextRule& text, int column_values, int columns, int rows) {
  return column_values * text_lines(columns) + text.diagonal_values * text_lines(text_diagonals(columns, rows));
}

/// Words of shared memory in which warps of sixteen rows each keep values of their rows and, together, of columns and
/// diagonals: several warps twice, so that one may find the next while another reads the last.
constexpr int text_words(const TextRule& text, int column_values, int row_values, int columns, int warps) {
  const int rows = 16 * warps;
  return (warps > 1 ? 2 : 1) * text_line_words(text, column_values, columns, rows) + row_values * rows;
}

}  // namespace strobe
