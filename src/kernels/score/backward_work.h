// SPDX-License-Identifier: Apache-2.0
// The work of a backward as numbers: blocks of keys and the query blocks that see them, blocks of queries.
#pragma once

#include "kernels/score/backward_params.h"
#include "kernels/sequence/query_blocks.h"
#include "kernels/sequence/visible_keys.h"

namespace strobe::score {

/// The queries and the keys of a sequence. The one behind the last has rows of packed tensors that belong to no
/// sequence. `params`: a kernel's.
template <ScoreRule R, typename Params>
__device__ __forceinline__ sequence::Sequence sequence_of(const Params& params, int index) {
  if constexpr (R.varlen) {
    if (index >= params.sequences.sequences) {
      const auto rest = [&](const int* cu_seqlens, int total) -> sequence::SequenceRows {
        const int start = cu_seqlens != nullptr ? cu_seqlens[params.sequences.sequences] : total;
        return {start, total - start, 0};
      };
      return {rest(params.sequences.cu_seqlens_q, params.sequences.total_q),
              rest(params.sequences.cu_seqlens_k, params.total_k), 0};
    }
  }
  return sequence::sequence_of<R>(params, index);
}

/// Where rows of a sequence lie in a tensor's batches.
__device__ __forceinline__ int q_batch(const BackwardParams& params, int sequence) {
  return params.sequences.cu_seqlens_q != nullptr ? 0 : sequence;
}
__device__ __forceinline__ int k_batch(const BackwardParams& params, int sequence) {
  return params.sequences.cu_seqlens_k != nullptr ? 0 : sequence;
}

/// Block 0 of a sequence in the workspaces of rows.
template <ScoreRule R>
__device__ __forceinline__ long long first_block_of(const BackwardParams& params, int sequence, int head, int block_m) {
  const int first =
      R.varlen ? sequence::first_query_block(params.sequences, sequence, block_m) : sequence * params.m_blocks;
  return static_cast<long long>(head) * params.query_blocks + first;
}

/// A block of keys of one key head, and the query blocks that see some of them.
struct KeyBlock : sequence::Sequence {
  int sequence, head_kv;
  int n;               // key block
  int m_begin, m_end;  // query blocks that see some of its keys
  int m_full, m_left;  // those in [m_full, m_left) see all of them: no mask

  /// Whether all queries of the block see all keys.
  template <ScoreRule R>
  __device__ __forceinline__ bool sees_all(int m) const {
    return m >= m_full && (!R.mask_left || m < m_left);
  }
};

/// The query blocks of a block of keys whose sequence and number are known.
template <ScoreRule R, int block_m, int block_n, typename Params>
__device__ __forceinline__ void find_query_blocks(const Params& params, KeyBlock& keys) {
  const int key_first = keys.n * block_n;
  const int key_last = min(key_first + block_n, keys.k.used) - 1;
  const int blocks = (keys.q.used + block_m - 1) / block_m;
  keys.m_begin = 0;
  keys.m_end = key_last < key_first ? 0 : blocks;
  keys.m_full = 0;
  keys.m_left = blocks;
  if constexpr (is_masked(R)) {
    const int first = sequence::first_positions<R>(params, keys.sequence).k;
    const sequence::QueryRange see_first =
        sequence::visible_queries<R>(params.visibility, keys.diagonal, key_first, first);
    const sequence::QueryRange see_last =
        sequence::visible_queries<R>(params.visibility, keys.diagonal, key_last, first);
    if constexpr (R.mask_right) {
      keys.m_begin = min(see_first.first / block_m, keys.m_end);
      keys.m_full = (see_last.first + block_m - 1) / block_m;
    }
    if constexpr (R.mask_left) {
      keys.m_end = max(keys.m_begin, min(keys.m_end, see_last.last < 0 ? 0 : see_last.last / block_m + 1));
      keys.m_left = see_first.last < 0 ? 0 : (see_first.last + 1) / block_m;
    }
  }
  if (key_first + block_n > keys.k.used) {
    keys.m_full = blocks;  // keys that do not exist
  }
}

/// A block of queries of one query head.
struct QueryBlock : sequence::Sequence {
  int sequence, head, m;

  /// The block of the CTA of that number: all blocks of a head before the next head's.
  template <ScoreRule R, typename Params>
  __device__ __forceinline__ static QueryBlock of(const Params& params, int number) {
    const int flat = number / params.m_blocks;
    const int sequence = flat / params.heads;
    QueryBlock block{sequence_of<R>(params, sequence)};
    block.sequence = sequence;
    block.head = flat - sequence * params.heads;
    block.m = number - flat * params.m_blocks;
    return block;
  }

  /// The block's number in the workspaces of rows.
  template <ScoreRule R>
  __device__ __forceinline__ long long in_workspaces(const BackwardParams& params, int block_m) const {
    return first_block_of<R>(params, sequence, head, block_m) + m;
  }
};

}  // namespace strobe::score
