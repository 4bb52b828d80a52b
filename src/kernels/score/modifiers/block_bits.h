// SPDX-License-Identifier: Apache-2.0
// Rules with block_bits: which pairs of its blocks that are shown in part a block mask shows. What a mask that is a
// text says of each pair is found once, before the pass (auxiliary/text_blocks.h), for all heads that share it; a step
// then takes two words of each thread, and the kernel has nothing of the text.
#pragma once

#include "kernels/score/fragment.h"
#include "kernels/score/modifiers/block_mask.h"

namespace strobe::score {

/// The words of a row of the block of a pair: of the query's row, or the key's.
__device__ __forceinline__ const unsigned* words_of_pair(const ScoreRule& rule, const BlockMaskParams& params,
                                                         int batch, int head, int query, int key) {
  const unsigned char* const block = block_of(rule.block_mask, params, batch, head, query, key);
  const int row = (rule.block_bits == BlockBits::query_bits ? query : key) & (rule.block_mask - 1);
  return params.bits + (block - params.data) * block_words(rule.block_mask) + row * kBlockWordsOfRow;
}

/// Whether a block mask shows a pair.
__device__ __forceinline__ bool shows_pair(const ScoreRule& rule, const BlockMaskParams& params, int batch, int head,
                                           int query, int key) {
  if (rule.block_mask == 0) {
    return true;
  }
  const unsigned char state = __ldg(block_of(rule.block_mask, params, batch, head, query, key));
  if (!has_block_bits(rule) || state == 0 || state == kShownBlock) {
    return state != 0;
  }
  const int column = (rule.block_bits == BlockBits::query_bits ? key : query) & (rule.block_mask - 1);
  const unsigned* const words = words_of_pair(rule, params, batch, head, query, key);
  return has_column(__ldg(words + column % 8 / 2), column / 8 * 8 + column % 2);
}

template <ScoreRule R>
__device__ __forceinline__ bool shows_pair(const BlockMaskParams& params, int batch, int head, int query, int key) {
  return shows_pair(R, params, batch, head, query, key);
}

/// This thread's words of a fragment's rows, of one block that is shown in part.
template <ScoreRule R>
class BlockWords {
 public:
  __device__ __forceinline__ BlockWords() {}

  __device__ __forceinline__ BlockWords(const unsigned* words, int column)
      : BlockWords(words, column, [](const unsigned* word) { return __ldg(word); }) {}

  /// `words`: of the thread's first row, each to be read by `load`. `column`: of the block, the fragment's first.
  template <typename Load>
  __device__ __forceinline__ BlockWords(const unsigned* words, int column, const Load& load) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const unsigned word = load(words + 8 * r * kBlockWordsOfRow + threadIdx.x % kBlockWordsOfRow);
      words_[r] = word >> column / kBlockWordsOfRow;
    }
  }

  /// Score i of the thread.
  __device__ __forceinline__ bool shows(int i) const {
    return has_column(words_[i / 2 % kRowsPerThread], i / 4 * 8 + i % 2);
  }

  /// Scores that are hidden become -inf, whatever they were.
  template <int n>
  __device__ __forceinline__ void hide(float (&s)[n]) const {
    static_assert(2 * n <= R.block_mask);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      s[i] = shows(i) ? s[i] : kMinusInfinity;
    }
  }

 private:
  unsigned words_[kRowsPerThread];
};

/// A thread's rows of a forward's tile, which lie in one row of blocks.
template <ScoreRule R>
class BlockBitsOfRows {
 public:
  /// `query`: of the thread's first row, of a sequence that has `queries`. Rows of blocks that do not exist take
  /// others'.
  __device__ __forceinline__ BlockBitsOfRows(const BlockMaskParams& params, int batch, int head, int query, int queries)
      : words_(words_of_pair(R, params, batch, head, in_last_block(query, queries), 0)) {}

  /// Those of the block in which keys from `first` on lie; to be found while their scores are computed.
  __device__ __forceinline__ BlockWords<R> find(int first) const {
    return {words_ + first / R.block_mask * block_words(R.block_mask), first % R.block_mask};
  }

 private:
  __device__ __forceinline__ static int in_last_block(int query, int queries) {
    return min(query / R.block_mask, (queries - 1) / R.block_mask) * R.block_mask + query % R.block_mask;
  }

  const unsigned* words_;
};

/// Those of rules that have none.
template <ScoreRule R>
  requires(!has_block_bits(R))
class BlockWords<R> {
 public:
  template <int n>
  __device__ __forceinline__ static void hide(float (&)[n]) {}
};

template <ScoreRule R>
  requires(!has_block_bits(R))
class BlockBitsOfRows<R> {
 public:
  template <typename Params>
  __device__ __forceinline__ BlockBitsOfRows(const Params&, int, int, int, int) {}
  __device__ __forceinline__ static BlockWords<R> find(int) { return {}; }
};

}  // namespace strobe::score
