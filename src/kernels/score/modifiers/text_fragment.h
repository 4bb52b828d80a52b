// SPDX-License-Identifier: Apache-2.0
// What a text needs of a fragment's rows, columns and diagonals, found once and kept, not found for each score.
#pragma once

#include "kernels/expression/element.h"
#include "kernels/score/fragment.h"
#include "kernels/score/modifiers/text_words.h"

namespace strobe::score {

/// Values that a text needs of a pair, as its code reads them.
template <ScoreRule R>
struct KeptWords {
  unsigned tile[R.text.tile_values + 1], query[R.text.query_values + 1], key[R.text.key_values + 1],
      diagonal[R.text.diagonal_values + 1];
};

/// Whose fragments share what is kept of columns and diagonals: one warp's, or those of kWarps neighbours, which pass
/// sync() together.
struct OneWarp {
  static constexpr int kWarps = 1;
  __device__ __forceinline__ static int warp() { return 0; }
  __device__ __forceinline__ static void sync() { __syncwarp(); }
};

/// What a text needs of a fragment of `columns` columns and sixteen rows for each of its warps: values of its tile in
/// registers, those of its rows, columns and diagonals in shared memory, as registers are short. Rows are queries and
/// columns keys, or the other way round.
template <ScoreRule R, int columns, bool rows_are_keys, typename Warps = OneWarp>
class TextFragment {
 public:
  /// `words`: the warps' shared memory, 8-byte aligned.
  __device__ __forceinline__ explicit TextFragment(unsigned* words) : words_(words) {}

  /// `first`: the pair of the warp's first row and column.
  template <typename Captures>
  __device__ __forceinline__ void find_rows(const Captures& captures, const expression::Position& first) {
    if constexpr (R.text.tile_values > 0) {
      tile_values(captures, first, tile_);
    }
    if constexpr (kBuffers > 1 && kLineWords > 0) {
      Warps::sync();  // all have read the lines of the tile before, which may be where this one's first are written
    }
    if constexpr (kRowValues > 0) {
      const int row = static_cast<int>(threadIdx.x % kRowsPerFragment);  // each is found twice
      expression::Position at = first;
      unsigned words[kRowValues];
      if constexpr (rows_are_keys) {
        at.k += row;
        key_values(captures, at, words);
      } else {
        at.q += row;
        query_values(captures, at, words);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kRowValues; ++i) {
        row_words()[i * kRowsPerFragment + row] = words[i];
      }
      __syncwarp();
    }
  }

  /// `first`: the pair of the warps' first row and column. Before it all lanes of a warp alone must have read what they
  /// want of the columns before. Not `with_diagonals`: those of the fragment before are the same.
  template <typename Captures>
  __device__ __forceinline__ void find_columns(const Captures& captures, const expression::Position& first,
                                               bool with_diagonals = true) const {
    if constexpr (kLineWords > 0) {
      if constexpr (kBuffers > 1) {
        buffer_ ^= kLineWords;
      } else {
        Warps::sync();
      }
      Columns::find(line_words(), [&](int line, auto& words)
                                      __attribute__((always_inline)) { find_column(captures, first, line, words); });
      if (with_diagonals) {
        Diagonals::find(line_words() + Columns::kWords, [&](int line, auto& words) __attribute__((always_inline)) {
          find_diagonal(captures, first, line, words);
        });
      }
      Warps::sync();
    }
  }

  /// What is kept for row r of this thread and `column`, less fragment_column().
  __device__ __forceinline__ KeptWords<R> at(int r, int column) const {
    KeptWords<R> kept;
#pragma unroll
    for (int i = 0; i < R.text.tile_values; ++i) {
      kept.tile[i] = tile_[i];
    }
#pragma unroll
    for (int i = 0; i < kRowValues; ++i) {
      (rows_are_keys ? kept.key : kept.query)[i] = row_words()[i * kRowsPerFragment + fragment_row(r)];
    }
#pragma unroll
    for (int i = 0; i < Columns::kWords / Columns::kCount; ++i) {
      (rows_are_keys ? kept.query : kept.key)[i] = line_words()[i * Columns::kCount + fragment_column() + column];
    }
    const int row = Warps::warp() * kRowsPerFragment + fragment_row(0);
    const int own = rows_are_keys ? columns - 1 + row - fragment_column() : kRows - 1 - row + fragment_column();
    const int line = rows_are_keys ? 8 * r - column : column - 8 * r;
#pragma unroll
    for (int i = 0; i < R.text.diagonal_values; ++i) {
      kept.diagonal[i] = line_words()[Columns::kWords + i * Diagonals::kCount + own + line];
    }
    return kept;
  }

 private:
  static constexpr int kRows = kRowsPerFragment * Warps::kWarps;
  static constexpr int kBuffers = Warps::kWarps > 1 ? 2 : 1;
  static constexpr int kRowValues = rows_are_keys ? R.text.key_values : R.text.query_values;
  static_assert(Warps::kWarps == 1 || !rows_are_keys);

  /// Lines of which as many values are kept, found by a lane each.
  template <int values, int count>
  struct Lines {
    static constexpr int kCount = text_lines(count);
    static constexpr int kWords = values * kCount;

    template <typename Find>
    __device__ __forceinline__ static void find(unsigned* to, const Find& find_line) {
      if constexpr (values > 0) {
        constexpr int kLanes = kThreadsPerWarp * Warps::kWarps;
        constexpr int kLinesAtOnce = 2;  // of each lane: loads wait together, and take registers
#pragma unroll kLinesAtOnce
        for (int first = 0; first < kCount; first += kLanes) {
          const int line = first + static_cast<int>(threadIdx.x % kLanes);
          if (kCount % kLanes == 0 || line < kCount) {
            unsigned words[values];
            find_line(line, words);
#pragma unroll
            for (int i = 0; i < values; ++i) {
              to[i * kCount + line] = words[i];
            }
          }
        }
      }
    }
  };
  using Columns = Lines<rows_are_keys ? R.text.query_values : R.text.key_values, columns>;
  using Diagonals = Lines<R.text.diagonal_values, text_diagonals(columns, kRows)>;
  static constexpr int kLineWords = Columns::kWords + Diagonals::kWords;

  template <typename Captures>
  __device__ __forceinline__ static void find_column(const Captures& captures, expression::Position at, int line,
                                                     unsigned* words) {
    if constexpr (rows_are_keys) {
      at.q += line;
      query_values(captures, at, words);
    } else {
      at.k += line;
      key_values(captures, at, words);
    }
  }

  /// Diagonal `line` is that of column `line` in the last row, or of row `line` in the last column.
  template <typename Captures>
  __device__ __forceinline__ static void find_diagonal(const Captures& captures, expression::Position at, int line,
                                                       unsigned* words) {
    at.k += line;
    at.q += rows_are_keys ? columns - 1 : kRows - 1;
    diagonal_values(captures, at, words);
  }

  __device__ __forceinline__ unsigned* line_words() const { return words_ + (kBuffers > 1 ? buffer_ : 0U); }
  __device__ __forceinline__ unsigned* row_words() const {
    return words_ + kBuffers * kLineWords + Warps::warp() * kRowsPerFragment * kRowValues;
  }

  unsigned* words_;
  unsigned tile_[R.text.tile_values + 1];
  mutable unsigned buffer_ = 0;  // where several warps' last lines are
};

/// That of rules that have none.
template <ScoreRule R, int columns, bool rows_are_keys, typename Warps>
  requires(!has_text(R))
class TextFragment<R, columns, rows_are_keys, Warps> {
 public:
  __device__ __forceinline__ explicit TextFragment(unsigned*) {}
};

}  // namespace strobe::score
