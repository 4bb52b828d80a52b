// SPDX-License-Identifier: Apache-2.0
// Where the rows of one sequence lie, and which keys a query sees.
#pragma once

#include "kernels/score/rule.h"
#include "kernels/sequence/params.h"

namespace strobe::sequence {

/// Rows of one side of one sequence. Batched: `start` is 0, or behind the left padding, and the batch index selects the
/// sequence.
struct SequenceRows {
  int start;  // first row, in a packed tensor or behind padding
  int owned;  // rows to write
  int used;   // rows that exist; the rest of `owned` count as absent
};

__device__ __forceinline__ SequenceRows sequence_rows(const int* cu_seqlens, const int* seqused, int seqlen, int total,
                                                      int sequence, int sequences) {
  SequenceRows rows{0, seqlen, seqlen};
  if (cu_seqlens != nullptr) {
    rows.start = cu_seqlens[sequence];
    rows.owned = (sequence < sequences ? cu_seqlens[sequence + 1] : total) - rows.start;
    rows.used = rows.owned;
  }
  if (sequence >= sequences) {
    rows.used = 0;  // rows of a packed tensor behind its last sequence
  } else if (seqused != nullptr) {
    rows.used = min(seqused[sequence], rows.owned);
  }
  return rows;
}

/// The queries and the keys of one sequence.
struct Sequence {
  SequenceRows q, k;
  int diagonal;  // key on query 0's diagonal: seqlen_k - seqlen_q, or 0, or what offsets make it
};

/// Where the first query and the first key of a sequence are in the whole of it; 0 of sequences that are whole.
struct FirstPositions {
  int q, k;
};

/// Numbers that the caller got wrong must not overflow.
__device__ __forceinline__ int position_at(const int* offsets, int sequence) {
  return offsets == nullptr ? 0 : min(max(offsets[sequence], 0), kPositions - 1);
}

template <ScoreRule R, typename Params>
struct ParamsFor {
  using type = Params;
};
template <ScoreRule R, typename Params>
  requires(R.offsets && !has_text(R))
struct ParamsFor<R, Params> {
  using type = WithOffsets<Params>;
};
template <ScoreRule R, typename Params>
  requires(has_text(R))
struct ParamsFor<R, Params> {
  using type = WithTexts<Params>;
};
/// What a kernel of the rule takes, of which its functions see a Params.
template <ScoreRule R, typename Params>
using KernelParams = typename ParamsFor<R, Params>::type;

/// Of a kernel's parameters, as it took them or without what offset rules have besides.
template <ScoreRule R, typename Params>
__device__ __forceinline__ OffsetParams offsets_of(const Params& params) {
  if constexpr (!R.offsets) {
    return {nullptr, nullptr};
  } else if constexpr (requires { params.offsets; }) {
    return params.offsets;
  } else {
    return static_cast<const WithOffsets<Params>&>(params).offsets;
  }
}

/// Likewise; of rules that have texts.
template <ScoreRule R, typename Params>
__device__ __forceinline__ const expression::Captures& captures_of(const Params& params) {
  if constexpr (requires { params.captures; }) {
    return params.captures;
  } else {
    return static_cast<const WithTexts<Params>&>(params).captures;
  }
}

/// Likewise.
template <ScoreRule R, typename Params>
__device__ __forceinline__ FirstPositions first_positions(const Params& params, int sequence) {
  if constexpr (R.offsets) {
    if (sequence < params.sequences.sequences) {
      const OffsetParams offsets = offsets_of<R>(params);
      return {position_at(offsets.q, sequence), position_at(offsets.k, sequence)};
    }
  }
  return {0, 0};
}

template <ScoreRule R>
__device__ __forceinline__ SequenceRows query_rows(const SequenceParams& params, int sequence) {
  if constexpr (R.varlen) {
    return sequence_rows(params.cu_seqlens_q, params.seqused_q, params.seqlen_q, params.total_q, sequence,
                         params.sequences);
  } else {
    return {0, params.seqlen_q, params.seqlen_q};
  }
}

/// Of a kernel's parameters.
template <ScoreRule R, typename Params>
__device__ __forceinline__ Sequence sequence_of(const Params& of, int index) {
  const SequenceParams& params = of.sequences;
  Sequence sequence;
  sequence.q = query_rows<R>(params, index);
  if constexpr (R.varlen) {
    sequence.k = index < params.sequences
                     ? sequence_rows(params.cu_seqlens_k, params.seqused_k, params.seqlen_k, 0, index, params.sequences)
                     : SequenceRows{0, 0, 0};
  } else {
    sequence.k = {0, params.seqlen_k, params.seqlen_k};
  }
  if constexpr (R.leftpad) {
    if (index < params.sequences) {
      // Numbers that the caller got wrong must not lead out of the sequence.
      sequence.k.start = min(max(params.leftpad_k[index], 0), max(sequence.k.used, 0));
      sequence.k.used -= sequence.k.start;
    }
  }
  if constexpr (R.offsets) {
    const FirstPositions first = first_positions<R>(of, index);
    sequence.diagonal = first.q - first.k;
  } else {
    sequence.diagonal = of.visibility.bottom_right != 0 ? sequence.k.used - sequence.q.used : 0;
  }
  return sequence;
}

/// The first key of the chunk that a key lies in; keys may be negative.
__device__ __forceinline__ int chunk_begin(int key, int chunk) {
  return (key >= 0 ? key / chunk : (key + 1) / chunk - 1) * chunk;
}

/// Keys from first to last; none where last < first.
struct KeyRange {
  int first, last;
};

/// The keys that the query sees whose key on the diagonal is `center`. Neither end ever falls from one query to the
/// next. `first_key`: the position of the sequence's first key, from which chunks are counted.
__device__ __forceinline__ KeyRange visible_keys(const ScoreRule& rule, const VisibilityParams& params,
                                                 const Sequence& sequence, int center, int first_key) {
  KeyRange keys{0, sequence.k.used - 1};
  if (rule.mask_left) {
    keys.first = max(keys.first, center - params.window_left);
  }
  if (rule.mask_right) {
    keys.last = max(min(keys.last, center + params.window_right), -1);
  }
  if (rule.chunked) {
    const int begin = chunk_begin(center + first_key, params.chunk) - first_key;
    keys.first = max(keys.first, begin);
    keys.last = max(min(keys.last, begin + params.chunk - 1), -1);
  }
  return keys;
}

template <ScoreRule R>
__device__ __forceinline__ KeyRange visible_keys(const VisibilityParams& params, const Sequence& sequence, int center,
                                                 int first_key) {
  return visible_keys(R, params, sequence, center, first_key);
}

/// Queries from first to last; none where last < first.
struct QueryRange {
  int first, last;
};

/// The queries that see a key: those of visible_keys, from the key's side. Neither end ever falls from one key to the
/// next. `first` is at least 0, `last` may lie behind the last query. `first_key`: as of visible_keys().
template <ScoreRule R>
__device__ __forceinline__ QueryRange visible_queries(const VisibilityParams& params, int diagonal, int key,
                                                      int first_key) {
  constexpr int kLast = 0x7fffffff;
  QueryRange queries{0, kLast};
  if constexpr (R.mask_right) {
    int first = key - params.window_right;
    if constexpr (R.chunked) {
      first = max(first, chunk_begin(key + first_key, params.chunk) - first_key);
    }
    queries.first = max(first - diagonal, 0);
  }
  if constexpr (R.mask_left && R.offsets) {  // whose sums of three would not fit 32 bits
    queries.last = min(key - diagonal, kPositions - 1) + params.window_left;
    if constexpr (R.chunked) {
      const int begin = chunk_begin(key + first_key, params.chunk) - first_key;
      queries.last = min(queries.last, min(begin - diagonal, kPositions - 1) + params.chunk - 1);
    }
  } else if constexpr (R.mask_left) {
    int last = key + params.window_left;
    if constexpr (R.chunked) {
      last = min(last, chunk_begin(key, params.chunk) + params.chunk - 1);
    }
    queries.last = last - diagonal;
  }
  return queries;
}

/// Blocks of keys, [begin, end); none: begin == end.
struct KeyBlocks {
  int begin, end;
};

/// The blocks that hold keys of some query between `first` and `last`, given what those two see.
template <int block_n>
__device__ __forceinline__ KeyBlocks key_blocks(const KeyRange& first, const KeyRange& last) {
  const int begin = first.first / block_n;
  return {begin, first.first <= last.last ? last.last / block_n + 1 : begin};
}

}  // namespace strobe::sequence
