// SPDX-License-Identifier: Apache-2.0
// What texts make of scores, and which keys they hide (src/expression). Their code precedes the kernel's: functions
// that are found by the type of their first argument (src/expression/cuda.h has the list).
//
// Forward: score_of(), of a scaled score after softcap, bias and ALiBi, in natural units. Derivative: slope_of(). Of a
// single pair: text_score() and text_shows().
#pragma once

#include "kernels/score/rule.h"

#ifdef __CUDACC_RTC__
#include "kernels/expression/element.h"
#include "kernels/math/constants.h"
#include "kernels/score/fragment.h"
#include "kernels/sequence/visible_keys.h"
#endif

namespace strobe {

/// Registers of a thread that a forward keeps for a text, but for what its code keeps.
inline constexpr int kTextRegisters = 24;

#ifdef __CUDACC_RTC__

namespace score {

/// The score of rules whose scores are a text's; of others it stays as it is.
template <ScoreRule R, typename Captures>
__device__ __forceinline__ float text_score(const Captures& captures, const expression::Position& position,
                                            float score) {
  if constexpr (R.text.score) {
    return score_of(captures, position, score);
  } else {
    return score;
  }
}

/// Its derivative by the score.
template <ScoreRule R, typename Captures>
__device__ __forceinline__ float text_slope(const Captures& captures, const expression::Position& position,
                                            float score) {
  if constexpr (R.text.slope) {
    return slope_of(captures, position, score);
  } else {
    return 1.0F;
  }
}

/// Whether a text shows the pair.
template <ScoreRule R, typename Captures>
__device__ __forceinline__ bool text_shows(const Captures& captures, const expression::Position& position) {
  if constexpr (R.text.mask) {
    return shows(captures, position);
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
          bits[r] |= (shows(r, own / 2 * 8 + own % 2) ? 1U : 0U) << i;
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

/// A thread's two rows of a forward's tile.
template <ScoreRule R>
class TextRows {
 public:
  /// `position_of(r)`: of its row r and of its sequence's first key.
  template <typename PositionOf>
  __device__ __forceinline__ TextRows(const expression::Captures& captures, const PositionOf& position_of)
      : captures_(captures), rows_{position_of(0), position_of(1)} {}

  /// The score of a key, in row r.
  __device__ __forceinline__ float score(float score, int r, int key) const {
    return text_score<R>(captures_, at(r, key), score);
  }

  /// Scores of the block that begins with key `first`, of which the text hides some.
  template <int n>
  __device__ __forceinline__ void hide(float (&s)[n], int first) const {
    const int own = first + fragment_column();
    const TextWords<n> words([&](int r, int column) { return text_shows<R>(captures_, at(r, own + column)); });
#pragma unroll
    for (int i = 0; i < n; ++i) {
      s[i] = words.shows(i) ? s[i] : kMinusInfinity;
    }
  }

 private:
  __device__ __forceinline__ expression::Position at(int r, int key) const {
    expression::Position position = rows_[r];
    position.k += key;
    return position;
  }

  const expression::Captures& captures_;
  expression::Position rows_[kRowsPerThread];
};

/// That of rules that have none.
template <ScoreRule R>
  requires(!has_text(R))
class TextRows<R> {
 public:
  template <typename Captures, typename PositionOf>
  __device__ __forceinline__ TextRows(const Captures&, const PositionOf&) {}
  __device__ __forceinline__ static float score(float score, int, int) { return score; }
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
