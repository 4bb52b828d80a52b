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

/// A thread's two rows of a forward's tile of `block_n` keys. Where `keeps`, they are neighbouring queries' of one
/// head, as are all of the warps'.
template <ScoreRule R, int block_n, bool keeps, typename Warps>
class TextRows {
 public:
  /// `position_of(r)`: of its row r and of its sequence's first key. `words`: the warps', where they keep values.
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
      position.q -= Warps::warp() * kRowsPerFragment;
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
  TextFragment<R, block_n, false, Warps> fragment_;
};

/// That of rules that have none.
template <ScoreRule R, int block_n, bool keeps, typename Warps>
  requires(!has_text(R))
class TextRows<R, block_n, keeps, Warps> {
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
