// SPDX-License-Identifier: Apache-2.0
// One fragment's scores: where they stand, which of them are hidden, and what joins them. Tiles are transposed: rows
// are keys, columns are queries.
#pragma once

#include "kernels/math/constants.h"
#include "kernels/score/modifiers/bias.h"
#include "kernels/score/modifiers/block_bits.h"
#include "kernels/score/modifiers/text.h"
#include "kernels/sm80/backward/work.h"

namespace strobe::sm80::backward {

/// A thread's scores of sixteen keys and part_m queries.
template <Config C>
using Scores = float[C.part_m / 2];

/// Scores of sixteen keys and part_m queries as operand of a product: sixteen queries each.
template <Config C>
struct OperandOf {
  using Type = uint32_t[C.part_m / kStep][4];
};
/// Of float32 they are split where they are multiplied.
template <Config C>
  requires(C.rule.element == Element::fp32)
struct OperandOf<C> {
  using Type = float[C.part_m / 2];
};
template <Config C>
using Operand = typename OperandOf<C>::Type;

/// Where scores of one fragment stand: sixteen keys from key_first on by part_m queries from query_first on.
template <Config C>
struct ScoreBlock {
  const Params& params;
  const Work& work;
  int head;  // of q
  int key_first, query_first;
  bool has_large_rows;  // of some block of the call's, perhaps not this one
  bool shown;           // a text that hides keys hides none of these

  /// This thread's row r, and its first column.
  __device__ __forceinline__ int key(int r) const { return key_first + score::fragment_row(r); }
  __device__ __forceinline__ int query() const { return query_first + score::fragment_column(); }
  __device__ __forceinline__ int head_in_batch() const { return work.sequence * params.heads + head; }
  __device__ __forceinline__ sequence::FirstPositions first() const {
    return sequence::first_positions<C.rule>(params, work.sequence);
  }
};

/// Whether a text that hides keys hides none of the block of a pair, as far as is known.
template <Config C>
__device__ __forceinline__ bool is_shown(const Params& params, const Work& work, int head, int query, int key) {
  return hides_by_text(C.rule) && score::shows_block<C.rule>(params.blocks, work.sequence, head, query, key);
}

/// What texts read of the pair of this thread's first row and column.
template <Config C>
__device__ __forceinline__ expression::Position first_pair(const ScoreBlock<C>& block) {
  const sequence::FirstPositions first = block.first();
  return {.q = first.q + block.query(),
          .k = first.k + block.key(0),
          .head = block.head,
          .head_kv = block.work.head_kv,
          .batch = block.work.sequence,
          .q_len = block.work.q.used,
          .k_len = block.work.k.used};
}

/// The bias of a block's scores, fetched ahead of its use.
template <Config C>
struct PartBias {
  Scores<C> terms;

  /// Pairs that do not exist get 0.
  __device__ __forceinline__ void fetch(const ScoreBlock<C>& block) {
    const BiasParams& params = block.params.score.bias;
    const long long first = params.row(block.work.sequence, block.head, block.query()) + block.key(0);
    const int queries = block.work.q.used - block.query();
    const int keys = block.work.k.used - block.key(0);
#pragma unroll
    for (int i = 0; i < C.part_m / 2; ++i) {
      const int column = i / 4 * 8 + i % 2;
      const int row = 8 * (i / 2 % kRowsPerThread);
      terms[i] = column < queries && row < keys
                     ? score::bias_at<C.rule>(params, first + column * params.row_stride + row)
                     : 0.0F;
    }
  }
};

/// The bias of rules that have none.
template <Config C>
  requires(!C.rule.bias)
struct PartBias<C> {
  __device__ __forceinline__ void fetch(const ScoreBlock<C>&) {}
};

/// Which of a thread's queries a text shows its keys.
template <Config C>
class TextPart {
 public:
  __device__ __forceinline__ explicit TextPart(const ScoreBlock<C>& block) : shown_(block.shown) {
    if constexpr (C.rule.text.mask) {
      if (!shown_) {
        const expression::Captures& captures = sequence::captures_of<C.rule>(block.params);
        words_ = score::TextWords<C.part_m / 2>([&](int r, int column) {
          expression::Position position = first_pair(block);
          position.q += column;
          position.k += 8 * r;
          return score::text_shows<C.rule>(captures, position);
        });
      }
    }
  }

  /// Register i of a thread's scores.
  __device__ __forceinline__ bool hides(int i) const {
    if constexpr (C.rule.text.mask) {
      return !(shown_ || words_.shows(i));
    } else {
      return false;
    }
  }

 private:
  bool shown_;
  score::TextWords<C.part_m / 2> words_;
};

/// Of rules where bits say it.
template <Config C>
  requires(has_block_bits(C.rule))
class TextPart<C> {
 public:
  __device__ __forceinline__ explicit TextPart(const ScoreBlock<C>& block) : shown_(block.shown) {
    if (!shown_) {
      const unsigned* const words = score::words_of_pair(C.rule, block.params.blocks, block.work.sequence, block.head,
                                                         block.query_first, block.key(0));
      words_ = {words, block.query_first % C.rule.block_mask};
    }
  }

  __device__ __forceinline__ bool hides(int i) const { return !(shown_ || words_.shows(i)); }

 private:
  bool shown_;
  score::BlockWords<C.rule> words_;
};

/// Which of a thread's queries see its keys: as distances from its first column.
template <Config C>
struct VisiblePart {
  int first[kRowsPerThread], last[kRowsPerThread];

  __device__ __forceinline__ explicit VisiblePart(const ScoreBlock<C>& block) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const int key = block.key(r);
      const sequence::QueryRange queries =
          sequence::visible_queries<C.rule>(block.params.visibility, block.work.diagonal, key, block.first().k);
      first[r] = key < block.work.k.used ? queries.first - block.query() : C.part_m;
      last[r] = queries.last - block.query();
    }
  }

  __device__ __forceinline__ bool hides(int r, int column) const {
    return column < first[r] || (C.rule.mask_left && column > last[r]);
  }
};

}  // namespace strobe::sm80::backward
