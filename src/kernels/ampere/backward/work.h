// SPDX-License-Identifier: Apache-2.0
// One item of work as numbers: a block of keys of one key head, and the query blocks that see it.
#pragma once

#include "kernels/ampere/backward/config.h"
#include "kernels/ampere/backward/params.h"
#include "kernels/ampere/backward/smem.h"
#include "kernels/ampere/tile/cta.h"
#include "kernels/score/visible_keys.h"

namespace strobe::ampere::backward {

using score::kFullWarp;
using score::kRowsPerThread;

/// Both sides of a sequence. The one behind the last has rows of packed tensors that belong to no sequence.
template <ScoreRule R>
__device__ __forceinline__ score::Sequence sequence_of(const Params& params, int index) {
  if constexpr (R.varlen) {
    if (index >= params.sequences.sequences) {
      const auto rest = [&](const int* cu_seqlens, int total) -> score::SequenceRows {
        const int start = cu_seqlens != nullptr ? cu_seqlens[params.sequences.sequences] : total;
        return {start, total - start, 0};
      };
      return {rest(params.sequences.cu_seqlens_q, params.sequences.total_q),
              rest(params.sequences.cu_seqlens_k, params.total_k), 0};
    }
  }
  return score::sequence_of<R>(params.sequences, params.visibility, index);
}

/// Where rows of a sequence lie in a tensor's batches.
__device__ __forceinline__ int q_batch(const Params& params, int sequence) {
  return params.sequences.cu_seqlens_q != nullptr ? 0 : sequence;
}
__device__ __forceinline__ int k_batch(const Params& params, int sequence) {
  return params.sequences.cu_seqlens_k != nullptr ? 0 : sequence;
}

/// Block 0 of a sequence in the workspaces of rows.
template <ScoreRule R>
__device__ __forceinline__ long long first_block_of(const Params& params, int sequence, int head, int block_m) {
  const int first =
      R.varlen ? score::first_query_block(params.sequences, sequence, block_m) : sequence * params.m_blocks;
  return static_cast<long long>(head) * params.query_blocks + first;
}

struct Work : score::Sequence {
  int sequence, head_kv;
  int n;               // key block
  int m_begin, m_end;  // query blocks that see some of its keys
  int m_full, m_left;  // those in [m_full, m_left) see all of them: no mask

  /// Whether all queries of the block see all keys.
  template <Config C>
  __device__ __forceinline__ bool sees_all(int m) const {
    return m >= m_full && (!C.rule.mask_left || m < m_left);
  }
};

static_assert(sizeof(Work) <= kWorkBytes);

/// The query blocks of an item whose numbers are known: those that see some of its keys, and those that see all.
template <Config C>
__device__ __forceinline__ void find_query_blocks(const Params& params, Work& work) {
  const int key_first = work.n * block_n(C);
  const int key_last = min(key_first + block_n(C), work.k.used) - 1;
  const int blocks = (work.q.used + C.block_m - 1) / C.block_m;
  work.m_begin = 0;
  work.m_end = key_last < key_first ? 0 : blocks;
  work.m_full = 0;
  work.m_left = blocks;
  if constexpr (is_masked(C.rule)) {
    const score::QueryRange see_first = score::visible_queries<C.rule>(params.visibility, work.diagonal, key_first);
    const score::QueryRange see_last = score::visible_queries<C.rule>(params.visibility, work.diagonal, key_last);
    if constexpr (C.rule.mask_right) {
      work.m_begin = min(see_first.first / C.block_m, work.m_end);
      work.m_full = (see_last.first + C.block_m - 1) / C.block_m;
    }
    if constexpr (C.rule.mask_left) {
      work.m_end = max(work.m_begin, min(work.m_end, see_last.last < 0 ? 0 : see_last.last / C.block_m + 1));
      work.m_left = see_first.last < 0 ? 0 : (see_first.last + 1) / C.block_m;
    }
  }
  if (key_first + block_n(C) > work.k.used) {
    work.m_full = blocks;  // keys that do not exist
  }
}

/// Items in order: sections of key heads; in a section, block 0 of every head, block 1 of every head, ... Under a
/// causal mask that is the longest first.
template <Config C>
__device__ __forceinline__ Work work_of(const Params& params, int item) {
  const int heads = gridDim.x / params.n_blocks;
  const int section = item / (params.section_heads * params.n_blocks);
  const int first = section * params.section_heads;
  const int within = item - first * params.n_blocks;
  const int count = min(params.section_heads, heads - first);
  const int flat_head = first + within % count;
  const int sequence = flat_head / params.heads_kv;
  Work work{sequence_of<C.rule>(params, sequence)};
  work.sequence = sequence;
  work.head_kv = flat_head - sequence * params.heads_kv;
  work.n = within / count;
  find_query_blocks<C>(params, work);
  return work;
}

}  // namespace strobe::ampere::backward
