// SPDX-License-Identifier: Apache-2.0
// One step's scores of a warpgroup: where they stand, which of them are hidden, and what joins them. All tiles are
// transposed: rows are keys, columns are queries.
#pragma once

#include "kernels/math/constants.h"
#include "kernels/score/apply.h"
#include "kernels/score/large_rows.h"
#include "kernels/score/modifiers/bias.h"
#include "kernels/score/modifiers/block_bits.h"
#include "kernels/score/modifiers/text.h"
#include "kernels/sm90/backward/config.h"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/backward/smem.h"
#include "kernels/sm90/backward/work.h"
#include "kernels/sm90/ptx/warpgroup.h"
#include "kernels/sm90/tile/fragment.h"

namespace strobe::sm90::backward {

/// This thread within its warpgroup, read anew: what is computed from it does not stay in registers between steps.
__device__ __forceinline__ int thread_of_warpgroup() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(thread));
  return thread % kWarpgroupSize;
}

template <Config C>
using Scores = float[C.block_m / 2];

/// A block of scores as operand of a product: sixteen queries each.
template <Config C>
using Operand = uint32_t[C.block_m / 16][4];

/// One step's scores of a warpgroup: 64 keys from key_first on by block_m queries from query_first on.
template <Config C>
struct ScoreBlock {
  const Params& params;
  const Work& work;
  int head_in_batch;  // the query head, counted through the batch
  int key_first, query_first;
  float slope_log2;  // ALiBi's; loaded here, so that its latency passes under the products
  bool shown;        // likewise: a text that hides keys hides none of these
  [[no_unique_address]] score::TextFragment<C.rule, C.block_m, true> text;

  __device__ __forceinline__ ScoreBlock(const Params& params_in, const Work& work_in, int head_in_batch_in,
                                        int key_first_in, int m)
      : params(params_in),
        work(work_in),
        head_in_batch(head_in_batch_in),
        key_first(key_first_in),
        query_first(m * C.block_m),
        slope_log2(0.0F),
        shown(false),
        text(nullptr) {
    if constexpr (hides_by_text(C.rule)) {
      shown = score::shows_block<C.rule>(params.blocks, work.sequence, head_in_batch - work.sequence * params.heads,
                                         query_first, key_first);
    }
    if constexpr (C.rule.alibi) {
      slope_log2 = score::slope_log2(params.score.alibi, work.sequence, head_in_batch - work.sequence * params.heads);
    }
  }

  /// What the scores need of a text, to be found while they are computed. `memory`: a warp's text_bytes() for each warp
  /// of the warpgroup. Not `with_diagonals`: it holds those of a block with the same diagonals.
  __device__ __forceinline__ void find_text(unsigned char* memory, bool with_diagonals = true) {
    if constexpr (keeps_text(C)) {
      const int warp = thread_of_warpgroup() / kWarpSize;
      text = decltype(text)(reinterpret_cast<unsigned*>(memory + warp * text_bytes(C)));
      const sequence::FirstPositions start = first();
      const expression::Position pair = {.q = start.q + query_first,
                                         .k = start.k + key_first + warp * kRowsPerWarp,
                                         .head = head_in_batch - work.sequence * params.heads,
                                         .head_kv = work.head_kv,
                                         .batch = work.sequence,
                                         .q_len = work.q.used,
                                         .k_len = work.k.used};
      const expression::Captures& captures = sequence::captures_of<C.rule>(params);
      text.find_rows(captures, pair);
      if (C.rule.text.score || !shown) {
        text.find_columns(captures, pair, with_diagonals);
      }
    }
  }

  /// The bits of this thread's first key. They are found when the scores are there: ahead of them, they would take
  /// registers that the joint design does not have.
  __device__ __forceinline__ const unsigned* words() const {
    return score::words_of_pair(C.rule, params.blocks, work.sequence, head_in_batch - work.sequence * params.heads,
                                query_first, key(0));
  }

  /// This thread's row r.
  __device__ __forceinline__ int key(int r) const {
    const int thread = thread_of_warpgroup();
    return key_first + thread / kWarpSize * kRowsPerWarp + thread % kWarpSize / 4 + 8 * r;
  }
  /// This thread's first column.
  __device__ __forceinline__ int query() const { return query_first + 2 * (thread_of_warpgroup() % 4); }

  __device__ __forceinline__ sequence::FirstPositions first() const {
    return sequence::first_positions<C.rule>(params, work.sequence);
  }

  /// Whether one of these queries, or of their neighbours, may be a row of a large LSE.
  __device__ __forceinline__ bool has_large_rows() const {
    return score::has_large_rows<C.rule>(params, head_in_batch, query_first);
  }

  /// Where a workspace that has an element for each row has that of this thread's first column.
  __device__ __forceinline__ const float* of_query(const float* rows) const {
    const int head = head_in_batch - work.sequence * params.heads;
    return rows + score::first_block_of<C.rule>(params, work.sequence, head, C.block_m) * C.block_m + query();
  }
};

/// What texts read of the pair of this thread's first row and column.
template <Config C>
__device__ __forceinline__ expression::Position first_pair(const ScoreBlock<C>& block) {
  const sequence::FirstPositions first = block.first();
  const int q = first.q + block.query();
  const int k = first.k + block.key(0);
  return {.q = q,
          .k = k,
          .head = block.head_in_batch - block.work.sequence * block.params.heads,
          .head_kv = block.work.head_kv,
          .batch = block.work.sequence,
          .q_len = block.work.q.used,
          .k_len = block.work.k.used,
          .distance = static_cast<float>(k - q)};
}

/// That of row r and `column` from a thread's first one on.
__device__ __forceinline__ expression::Position pair_of(expression::Position first, int r, int column) {
  first.q += column;
  first.k += 8 * r;
  first.distance += static_cast<float>(8 * r - column);
  return first;
}

/// That of score i of a thread.
__device__ __forceinline__ expression::Position pair_of(const expression::Position& first, int i) {
  return pair_of(first, i / 2 % kRowsPerThread, i / 4 * 8 + i % 2);
}

/// use(kept): of row r and `column`, less its thread's first one, what is kept of the text; use() where nothing is.
template <Config C, typename Use>
__device__ __forceinline__ auto with_kept(const ScoreBlock<C>& block, int r, int column, const Use& use) {
  if constexpr (keeps_text(C)) {
    return use(block.text.at(r, column));
  } else {
    return use();
  }
}

/// Likewise of score i of a thread.
template <Config C, typename Use>
__device__ __forceinline__ auto with_kept(const ScoreBlock<C>& block, int i, const Use& use) {
  return with_kept<C>(block, i / 2 % kRowsPerThread, i / 4 * 8 + i % 2, use);
}

/// Scores of pairs that a text hides become -inf.
template <Config C>
__device__ __forceinline__ void hide_by_text(const ScoreBlock<C>& block, Scores<C>& s) {
  if constexpr (has_block_bits(C.rule)) {
    score::BlockWords<C.rule>(block.words(), block.query_first % C.rule.block_mask).hide(s);
  } else {
    const expression::Captures& captures = sequence::captures_of<C.rule>(block.params);
    const expression::Position first = first_pair(block);
    score::hide_by<keeps_text(C) && C.rule.text.short_mask>(s, [&](int r, int column) {
      const expression::Position position = pair_of(first, r, column);
      return with_kept<C>(block, r, column,
                          [&](const auto&... kept) { return score::text_shows<C.rule>(captures, position, kept...); });
    });
  }
}

/// Scores whose keys lie behind the sequence's, or outside of what masks by position leave of a row, become -inf.
template <Config C>
__device__ __forceinline__ void hide_by_position(const ScoreBlock<C>& block, Scores<C>& s) {
  const int first_key = block.first().k;
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const int key = block.key(r);
    const sequence::QueryRange queries =
        sequence::visible_queries<C.rule>(block.params.visibility, block.work.diagonal, key, first_key);
    // Queries [first, last] of this block see the key; as distances from this thread's first column.
    const int first = key < block.work.k.used ? queries.first - block.query() : C.block_m;
    const int last = queries.last - block.query();
#pragma unroll
    for (int j = 0; j < C.block_m / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const bool hidden = 8 * j + c < first || (C.rule.mask_left && 8 * j + c > last);
        float& score = s[4 * j + 2 * r + c];
        score = hidden ? kMinusInfinity : score;
      }
    }
  }
}

/// Each of this thread's scores whose key its query does not see becomes -inf, whatever it was.
template <Config C>
__device__ __forceinline__ void hide(const ScoreBlock<C>& block, Scores<C>& s) {
  if constexpr (hides_by_text(C.rule)) {
    if (!block.work.template sees_all<C.rule>(block.query_first / C.block_m)) {
      hide_by_position<C>(block, s);
    }
    if (!block.shown) {
      hide_by_text<C>(block, s);
    }
  } else {
    hide_by_position<C>(block, s);
  }
}

/// LSE or D of a step's queries: of every 64, each lane of a warp keeps two, and asks others for those that it needs.
/// If each read its own, the warps would take a tenth of shared memory's time, which the WGMMAs need.
template <Config C>
using RowNumbers = float2[C.block_m / 64];

template <Config C>
__device__ __forceinline__ void load_row_numbers(RowNumbers<C>& x, const float* rows) {
#pragma unroll
  for (int i = 0; i < C.block_m / 64; ++i) {
    x[i] = reinterpret_cast<const float2*>(rows + 64 * i)[threadIdx.x % kWarpSize];
  }
}

/// Scales LSE so that P comes out times 2^12.
template <Config C>
__device__ __forceinline__ void scale_probabilities(RowNumbers<C>& lse_log2) {
#pragma unroll
  for (float2& two : lse_log2) {
    two = {two.x - kProbabilityLog2, two.y - kProbabilityLog2};
  }
}

/// The numbers of this thread's two columns within the block's eight columns of number j.
template <Config C>
__device__ __forceinline__ float2 row_numbers(const RowNumbers<C>& x, int j) {
  return {ptx::shfl_quad(x[j / 8].x, j % 8), ptx::shfl_quad(x[j / 8].y, j % 8)};
}

/// The bias of a step's scores, fetched ahead of its use.
template <Config C>
struct StepBias {
  Scores<C> terms;

  /// The bias of scores 2 index and the next.
  __device__ __forceinline__ float2 pair(int index) const { return {terms[2 * index], terms[2 * index + 1]}; }

  /// Pairs that do not exist get 0.
  __device__ __forceinline__ void fetch(const ScoreBlock<C>& block) {
    const BiasParams& params = block.params.score.bias;
    const Work& work = block.work;
    const int head = block.head_in_batch - work.sequence * block.params.heads;
    const int query = block.query();
    const int key = block.key(0);
    const long long first = params.row(work.sequence, head, query) + key;
    const auto fetch_those = [&](const auto& exists) {
#pragma unroll
      for (int i = 0; i < C.block_m / 2; ++i) {
        const int column = i / 4 * 8 + i % 2;
        const int row = 8 * (i / 2 % kRowsPerThread);
        terms[i] = exists(query + column, key + row)
                       ? score::bias_at<C.rule>(params, first + column * params.row_stride + row)
                       : 0.0F;
      }
    };
    if (block.query_first + C.block_m <= work.q.used && block.key_first + kRowsPerWarpgroup <= work.k.used) {
      fetch_those([](int, int) { return true; });
    } else {
      fetch_those([&](int i, int j) { return i < work.q.used && j < work.k.used; });
    }
  }
};

/// The bias of rules that have none.
template <Config C>
  requires(!C.rule.bias)
struct StepBias<C> {
  __device__ __forceinline__ void fetch(const ScoreBlock<C>&) {}
  __device__ __forceinline__ float2 pair(int) const { return {0.0F, 0.0F}; }
};

}  // namespace strobe::sm90::backward
