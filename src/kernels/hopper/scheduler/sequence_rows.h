// Where the rows of one sequence lie, and which keys they see: what schedule and work have in common.
#pragma once

#include "kernels/hopper/forward/config.h"
#include "kernels/hopper/forward/params.h"

namespace strobe::hopper {

/// Rows of one side of one sequence. Batched: `start` is 0 and the batch index selects the sequence.
struct SequenceRows {
  int start;  // first row, in a packed tensor
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

/// Both sides of one sequence. Rows of Q are counted as tiles do: packed_heads to a position.
struct Sequence {
  SequenceRows q, k;
  int diagonal;  // key on query 0's diagonal: seqlen_k - seqlen_q, or 0
};

template <KernelConfig C>
__device__ __forceinline__ SequenceRows query_rows(const ForwardParams& params, int sequence) {
  if constexpr (C.varlen) {
    return sequence_rows(params.cu_seqlens_q, params.seqused_q, params.seqlen_q, params.total_q, sequence,
                         params.sequences);
  } else {
    return {0, params.seqlen_q, params.seqlen_q};
  }
}

template <KernelConfig C>
__device__ __forceinline__ Sequence sequence_of(const ForwardParams& params, int index) {
  Sequence sequence;
  sequence.q = query_rows<C>(params, index);
  if constexpr (C.varlen) {
    sequence.k = index < params.sequences
                     ? sequence_rows(params.cu_seqlens_k, params.seqused_k, params.seqlen_k, 0, index, params.sequences)
                     : SequenceRows{0, 0, 0};
  } else {
    sequence.k = {0, params.seqlen_k, params.seqlen_k};
  }
  sequence.diagonal = params.bottom_right != 0 ? sequence.k.used - sequence.q.used : 0;
  return sequence;
}

/// The position on the diagonal of a row of a tile.
template <KernelConfig C>
__device__ __forceinline__ int center_of(const Sequence& sequence, int row) {
  return row / C.packed_heads + sequence.diagonal;
}

/// The first key of the chunk that a position lies in; positions may be negative.
__device__ __forceinline__ int chunk_begin(int position, int chunk) {
  return (position >= 0 ? position / chunk : (position + 1) / chunk - 1) * chunk;
}

/// A row sees the keys from first_key to last_key. Neither ever falls from one row to the next.
template <KernelConfig C>
__device__ __forceinline__ int first_key(const ForwardParams& params, const Sequence& sequence, int row) {
  int first = 0;
  if constexpr (C.mask_left) {
    first = max(first, center_of<C>(sequence, row) - params.mask_left);
  }
  if constexpr (C.chunked) {
    first = max(first, chunk_begin(center_of<C>(sequence, row), params.chunk));
  }
  return first;
}

template <KernelConfig C>
__device__ __forceinline__ int last_key(const ForwardParams& params, const Sequence& sequence, int row) {
  int last = sequence.k.used - 1;
  if constexpr (C.mask_right) {
    last = max(min(last, center_of<C>(sequence, row) + params.mask_right), -1);
  }
  if constexpr (C.chunked) {
    last = max(min(last, chunk_begin(center_of<C>(sequence, row), params.chunk) + params.chunk - 1), -1);
  }
  return last;
}

/// Blocks of keys, [begin, end), that some of the rows [row_first, row_first + rows) see; none: begin == end.
struct KeyBlocks {
  int begin, end;
};

template <KernelConfig C>
__device__ __forceinline__ KeyBlocks key_blocks(const ForwardParams& params, const Sequence& sequence, int row_first,
                                                int rows) {
  const int row_last = min(row_first + rows, sequence.q.used * C.packed_heads) - 1;
  if (row_last < row_first) {
    return {0, 0};
  }
  const int key_begin = first_key<C>(params, sequence, row_first);
  const int key_end = last_key<C>(params, sequence, row_last) + 1;
  const int begin = key_begin / C.block_n;
  return {begin, key_begin < key_end ? (key_end + C.block_n - 1) / C.block_n : begin};
}

}  // namespace strobe::hopper
