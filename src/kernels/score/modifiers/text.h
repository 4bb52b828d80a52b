// SPDX-License-Identifier: Apache-2.0
// What texts make of scores, and which keys they hide (src/expression). Their code precedes the kernel's: functions
// that are found by the type of their first argument (src/expression/cuda.h has the list).
//
// Forward: score_of(), of a scaled score after softcap, bias and ALiBi, in natural units. Derivative: slope_of(). Of a
// single pair: text_score() and text_shows(). Of a tile TextRows, and TextFragment where values of its queries, keys
// and diagonals are found once and kept, not found for each score.
#pragma once

#include "kernels/score/rule.h"

#ifdef __CUDACC_RTC__
#include "kernels/expression/element.h"
#include "kernels/math/constants.h"
#include "kernels/ptx/arithmetic.h"
#include "kernels/score/fragment.h"
#include "kernels/sequence/visible_keys.h"
#endif

namespace strobe {

/// Registers of a thread that a forward keeps for a text, but for what its code keeps.
inline constexpr int kTextRegisters = 24;

/// Of heads of up to so many columns kernels have shared memory for values of a text.
inline constexpr int kMostTextColumns = 128;

/// Lines of a fragment, columns or diagonals, of which a warp finds values: 32 at a time.
constexpr int text_lines(int count) { return (count + 31) / 32 * 32; }
constexpr int text_diagonals(int columns) { return columns + 15; }  // of sixteen rows

/// Words of shared memory in which a warp keeps values of its columns, diagonals and sixteen rows.
constexpr int text_words(const TextRule& text, int column_values, int row_values, int columns) {
  return column_values * text_lines(columns) + text.diagonal_values * text_lines(text_diagonals(columns)) +
         row_values * 16;
}

#ifdef __CUDACC_RTC__

namespace score {

/// The score of rules whose scores are a text's; of others it stays as it is. `kept`: values of the pair that are
/// known, if any are (KeptWords); likewise below.
template <ScoreRule R, typename Captures, typename... KeptAndScore>
__device__ __forceinline__ float text_score(const Captures& captures, const expression::Position& position,
                                            const KeptAndScore&... kept_and_score) {
  if constexpr (R.text.score) {
    return score_of(captures, position, kept_and_score...);
  } else {
    return (kept_and_score, ...);
  }
}

/// Its derivative by the score.
template <ScoreRule R, typename Captures, typename... KeptAndScore>
__device__ __forceinline__ float text_slope(const Captures& captures, const expression::Position& position,
                                            const KeptAndScore&... kept_and_score) {
  if constexpr (R.text.slope) {
    return slope_of(captures, position, kept_and_score...);
  } else {
    return 1.0F;
  }
}

/// Whether a text shows the pair.
template <ScoreRule R, typename Captures, typename... Kept>
__device__ __forceinline__ bool text_shows(const Captures& captures, const expression::Position& position,
                                           const Kept&... kept) {
  if constexpr (R.text.mask) {
    return shows(captures, position, kept...);
  } else {
    return true;
  }
}

/// Which of a thread's scores a text shows, of a fragment of n scores: found in a loop, which takes few registers and
/// little code, and looked at where the scores are. Several columns at a time, so that loads wait together.
template <int n>
class TextWords {
 public:
  TextWords() = default;

  /// shows(r, column): of row r, column less fragment_column().
  template <typename Shows>
  __device__ __forceinline__ explicit TextWords(const Shows& shows) {
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      unsigned bits[kRowsPerThread] = {};
#pragma unroll kColumnsAtOnce
      for (int i = 0; i < kColumns; ++i) {
        const int own = word * kBits + i;
#pragma unroll
        for (int r = 0; r < kRowsPerThread; ++r) {
          ptx::set_bit(bits[r], i, shows(r, own / 2 * 8 + own % 2));
        }
      }
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        words_[r][word] = bits[r];
      }
    }
  }

  /// Score i of the thread.
  __device__ __forceinline__ bool shows(int i) const {
    const int column = i / 4 * 2 + i % 2;
    return (words_[i / 2 % kRowsPerThread][column / kBits] >> (column % kBits) & 1U) != 0;
  }

 private:
  static constexpr int kBits = 32;
  static constexpr int kColumns = n / 2 < kBits ? n / 2 : kBits;
  static constexpr int kWords = (n / 2 + kBits - 1) / kBits;
  static constexpr int kColumnsAtOnce = 8;
  unsigned words_[kRowsPerThread][kWords];
};

/// Scores for which not shows(r, column) become -inf. `is_short`: it is evaluated at each score, else in a loop.
template <bool is_short, int n, typename Shows>
__device__ __forceinline__ void hide_by(float (&s)[n], const Shows& shows) {
  if constexpr (is_short) {
#pragma unroll
    for (int i = 0; i < n; i += 4) {  // one column pair after another: else loads take registers that others need
      asm volatile("" ::: "memory");
#pragma unroll
      for (int own = i; own < i + 4; ++own) {
        s[own] = shows(own / 2 % kRowsPerThread, own / 4 * 8 + own % 2) ? s[own] : kMinusInfinity;
      }
    }
  } else {
    const TextWords<n> words(shows);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      s[i] = words.shows(i) ? s[i] : kMinusInfinity;
    }
  }
}

/// Values that a text needs of a pair, as its code reads them.
template <ScoreRule R>
struct KeptWords {
  unsigned tile[R.text.tile_values + 1], query[R.text.query_values + 1], key[R.text.key_values + 1],
      diagonal[R.text.diagonal_values + 1];
};

/// What a text needs of a warp's fragment of sixteen rows and `columns` columns: values of its tile in registers, those
/// of its rows, columns and diagonals in shared memory, as registers are short. Rows are queries and columns keys, or
/// the other way round.
template <ScoreRule R, int columns, bool rows_are_keys>
class TextFragment {
 public:
  /// `words`: the warp's shared memory, 8-byte aligned.
  __device__ __forceinline__ explicit TextFragment(unsigned* words) : words_(words) {}

  /// `first`: the pair of the first row and column.
  template <typename Captures>
  __device__ __forceinline__ void find_rows(const Captures& captures, const expression::Position& first) {
    if constexpr (R.text.tile_values > 0) {
      tile_values(captures, first, tile_);
    }
    if constexpr (kRowValues > 0) {
      const int row = static_cast<int>(threadIdx.x % kRows);  // each is found twice
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
        words_[kLineWords + i * kRows + row] = words[i];
      }
      __syncwarp();
    }
  }

  /// Likewise. Before it all lanes must have read what they want of the columns before. Not `with_diagonals`: those of
  /// the fragment before are the same.
  template <typename Captures>
  __device__ __forceinline__ void find_columns(const Captures& captures, const expression::Position& first,
                                               bool with_diagonals = true) const {
    if constexpr (kLineWords > 0) {
      __syncwarp();
      find_lines<kColumnValues, text_lines(columns)>(words_, [&](int line, auto& words) __attribute__((always_inline)) {
        expression::Position at = first;
        if constexpr (rows_are_keys) {
          at.q += line;
          query_values(captures, at, words);
        } else {
          at.k += line;
          key_values(captures, at, words);
        }
      });
      if (with_diagonals) {
        find_lines<R.text.diagonal_values, kDiagonals>(words_ + kColumnWords,
                                                       [&](int line, auto& words) __attribute__((always_inline)) {
                                                         expression::Position at = first;
                                                         at.k += line;
                                                         at.q += rows_are_keys ? columns - 1 : 15;
                                                         diagonal_values(captures, at, words);
                                                       });
      }
      __syncwarp();
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
      (rows_are_keys ? kept.key : kept.query)[i] = words_[kLineWords + i * kRows + fragment_row(r)];
    }
#pragma unroll
    for (int i = 0; i < kColumnValues; ++i) {
      (rows_are_keys ? kept.query : kept.key)[i] = words_[i * text_lines(columns) + fragment_column() + column];
    }
    // Diagonal `line` is that of column `line` in the last row, or of row `line` in the last column.
    const int own =
        rows_are_keys ? columns - 1 + fragment_row(0) - fragment_column() : 15 - fragment_row(0) + fragment_column();
    const int line = rows_are_keys ? 8 * r - column : column - 8 * r;
#pragma unroll
    for (int i = 0; i < R.text.diagonal_values; ++i) {
      kept.diagonal[i] = words_[kColumnWords + i * kDiagonals + own + line];
    }
    return kept;
  }

 private:
  static constexpr int kRows = 16;
  static constexpr int kColumnValues = rows_are_keys ? R.text.query_values : R.text.key_values;
  static constexpr int kRowValues = rows_are_keys ? R.text.key_values : R.text.query_values;
  static constexpr int kColumnWords = kColumnValues * text_lines(columns);
  static constexpr int kDiagonals = text_lines(text_diagonals(columns));
  static constexpr int kLineWords = kColumnWords + R.text.diagonal_values * kDiagonals;

  static constexpr int kLinesAtOnce = 2;  // of each lane: loads wait together, and take registers

  template <int values, int lines, typename Find>
  __device__ __forceinline__ static void find_lines(unsigned* to, const Find& find) {
    if constexpr (values > 0) {
#pragma unroll kLinesAtOnce
      for (int first = 0; first < lines; first += kThreadsPerWarp) {
        const int line = first + static_cast<int>(threadIdx.x % kThreadsPerWarp);
        unsigned words[values];
        find(line, words);
#pragma unroll
        for (int i = 0; i < values; ++i) {
          to[i * lines + line] = words[i];
        }
      }
    }
  }

  unsigned* words_;
  unsigned tile_[R.text.tile_values + 1];
};

/// That of rules that have none.
template <ScoreRule R, int columns, bool rows_are_keys>
  requires(!has_text(R))
class TextFragment<R, columns, rows_are_keys> {
 public:
  __device__ __forceinline__ explicit TextFragment(unsigned*) {}
};

/// A thread's two rows of a forward's tile of `block_n` keys. Where `keeps`, they are neighbouring queries' of one
/// head.
template <ScoreRule R, int block_n, bool keeps>
class TextRows {
 public:
  /// `position_of(r)`: of its row r and of its sequence's first key. `words`: the warp's, where it keeps values.
  template <typename PositionOf>
  __device__ __forceinline__ TextRows(const expression::Captures& captures, const PositionOf& position_of,
                                      unsigned* words)
      : captures_(captures), rows_{position_of(0), position_of(1)}, fragment_(words) {
    if constexpr (keeps) {
      rows_[1] = rows_[0];
      rows_[1].q += fragment_row(1) - fragment_row(0);
      fragment_.find_rows(captures, first_row());
    }
  }

  /// What comes before the scores of the block that begins with key `first`.
  __device__ __forceinline__ void find(int first) const {
    if constexpr (keeps) {
      expression::Position position = first_row();
      position.k += first;
      fragment_.find_columns(captures_, position);
    }
  }

  /// The score of a key in row r: `column` keys after `own`, this thread's first.
  __device__ __forceinline__ float score(float score, int r, int own, int column) const {
    if constexpr (keeps) {
      return text_score<R>(captures_, at(r, own, column), fragment_.at(r, column), score);
    } else {
      return text_score<R>(captures_, at(r, own, column), score);
    }
  }

  /// Scores of the block that begins with key `first`, of which the text hides some.
  template <int n>
  __device__ __forceinline__ void hide(float (&s)[n], int first) const {
    const int own = first + fragment_column();
    hide_by<keeps && R.text.short_mask>(s, [&](int r, int column) {
      if constexpr (keeps) {
        return text_shows<R>(captures_, at(r, own, column), fragment_.at(r, column));
      } else {
        return text_shows<R>(captures_, at(r, own, column));
      }
    });
  }

 private:
  /// `distance` is that of neighbouring queries: it serves where values are kept.
  __device__ __forceinline__ expression::Position at(int r, int own, int column) const {
    expression::Position position = rows_[r];
    position.k += own + column;
    position.distance = static_cast<float>(rows_[0].k + own - rows_[0].q) + static_cast<float>(column - 8 * r);
    return position;
  }

  /// Of the warp's first row.
  __device__ __forceinline__ expression::Position first_row() const {
    expression::Position position = rows_[0];
    position.q -= fragment_row(0);
    return position;
  }

  const expression::Captures& captures_;
  expression::Position rows_[kRowsPerThread];
  TextFragment<R, block_n, false> fragment_;
};

/// That of rules that have none.
template <ScoreRule R, int block_n, bool keeps>
  requires(!has_text(R))
class TextRows<R, block_n, keeps> {
 public:
  template <typename Captures, typename PositionOf>
  __device__ __forceinline__ TextRows(const Captures&, const PositionOf&, unsigned*) {}
  __device__ __forceinline__ static void find(int) {}
  __device__ __forceinline__ static float score(float score, int, int, int) { return score; }
};

/// In the place of the captures of rules that have no text.
struct NoCaptures {};

/// What texts read, of a kernel's parameters.
template <ScoreRule R, typename Params>
__device__ __forceinline__ decltype(auto) captures_of(const Params& params) {
  if constexpr (has_text(R)) {
    return sequence::captures_of<R>(params);
  } else {
    return NoCaptures{};
  }
}

/// Likewise, null of rules that have no text.
template <ScoreRule R, typename Params>
__device__ __forceinline__ const expression::Captures* captures_pointer(const Params& params) {
  if constexpr (has_text(R)) {
    return &sequence::captures_of<R>(params);
  } else {
    return nullptr;
  }
}

}  // namespace score

#endif

}  // namespace strobe
