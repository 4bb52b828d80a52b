// SPDX-License-Identifier: Apache-2.0
// What texts make of scores, and which keys they hide (src/expression). Their code precedes the kernel's: functions
// that are found by the type of their first argument (src/expression/cuda.h has the list).
//
// Forward: score_of(), of a scaled score after softcap, bias and ALiBi, in natural units. Derivative: slope_of(). Of a
// single pair: text_score() and text_shows(). Of a tile TextRows, and TextFragment where values of its queries, keys
// and diagonals are found once and kept, not found for each score.
#pragma once

#include "kernels/score/modifiers/text_words.h"
#include "kernels/score/rule.h"

#ifdef __CUDACC_RTC__
#include "kernels/expression/element.h"
#include "kernels/math/constants.h"
#include "kernels/ptx/arithmetic.h"
#include "kernels/score/fragment.h"
#include "kernels/score/modifiers/text_fragment.h"
#include "kernels/sequence/visible_keys.h"
#endif

namespace strobe {

/// Registers of a thread that a forward keeps for a text, but for what its code keeps.
inline constexpr int kTextRegisters = 24;

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

  /// Of its row r, of up to kColumnsPerWord columns.
  __device__ __forceinline__ unsigned word(int r) const {
    static_assert(kWords == 1);
    return words_[r][0];
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
