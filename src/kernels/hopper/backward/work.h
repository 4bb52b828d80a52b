// SPDX-License-Identifier: Apache-2.0
// One item of work as numbers: a block of keys of one key head, and the query blocks that see it. Producer and
// consumers compute it alike.
#pragma once

#include "kernels/hopper/backward/config.h"
#include "kernels/hopper/backward/params.h"
#include "kernels/score/visible_keys.h"

namespace strobe::hopper::backward {

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

/// The sequence of a key head by the head's flat number, which counts a sequence's heads one after the other; with a
/// bias, which sequences may share, all sequences' first heads, so that those that read it together find it in L2.
template <ScoreRule R>
__device__ __forceinline__ int sequence_of_head(const Params& params, int flat) {
  return R.bias ? flat % params.sequences.batch : flat / params.heads_kv;
}
template <ScoreRule R>
__device__ __forceinline__ int head_in_sequence(const Params& params, int flat, int sequence) {
  return R.bias ? flat / params.sequences.batch : flat - sequence * params.heads_kv;
}

struct Work : score::Sequence {
  int sequence, head_kv;
  int launch_head;                 // key head within this launch
  int n;                           // key block
  int m_begin, m_end;              // query blocks that see some of its keys
  int m_full, m_left;              // those in [m_full, m_left) see all of them: no mask
  int m_first, m_past, direction;  // the way through them: from m_first by `direction`, 1 or -1, up to before m_past

  __device__ __forceinline__ int steps() const { return m_end - m_begin; }

  // The same way, where its direction may be known at compile time.
  template <Config C>
  __device__ __forceinline__ int first() const {
    return C.ordered ? m_first : m_begin;
  }
  template <Config C>
  __device__ __forceinline__ bool goes_on(int m) const {
    return C.ordered ? m != m_past : m < m_end;
  }
  template <Config C>
  __device__ __forceinline__ int step() const {
    return C.ordered ? direction : 1;
  }

  /// Whether all queries of the block see all keys.
  template <Config C>
  __device__ __forceinline__ bool sees_all(int m) const {
    return m >= m_full && (!C.rule.mask_left || m < m_left);
  }
};

/// The query blocks of an item whose numbers are known: those that see some of its keys, and those that see all.
template <Config C>
__device__ __forceinline__ void find_query_blocks(const Params& params, Work& work) {
  constexpr int kBlockN = block_n(C);
  const int key_first = work.n * kBlockN;
  const int key_last = min(key_first + kBlockN, work.k.used) - 1;
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
  if (key_first + kBlockN > work.k.used) {
    work.m_full = blocks;  // keys that do not exist
  }
}

/// Items in order: sections of key heads; in a section, block 0 of every head, block 1 of every head, ... Under a
/// causal mask that is the longest first.
///
/// Where dQ's sums are added to in order (query_turns.h), items of one head that start together on the same queries
/// wait for each other. Longest first, they all begin with the last queries, unless they start one after the other, as
/// those do that take the place of shorter ones. So under a causal mask every second section has the shortest items
/// first: these begin on the diagonal, each on other queries. The last section has the longest first.
template <Config C>
__device__ __forceinline__ Work work_of(const Params& params, int item) {
  const int heads = params.items / params.key_blocks;
  const int section = item / (params.section_heads * params.key_blocks);
  const int first = section * params.section_heads;
  const int within = item - first * params.key_blocks;
  const int count = min(params.section_heads, heads - first);
  const int flat_head = first + within % count;
  const int sequence = sequence_of_head<C.rule>(params, params.first_head_kv + flat_head);
  Work work{sequence_of<C.rule>(params, sequence)};
  work.sequence = sequence;
  work.head_kv = head_in_sequence<C.rule>(params, params.first_head_kv + flat_head, sequence);
  work.launch_head = flat_head;
  const int block = within / count;
  const bool descends =
      C.ordered && (alternates(C) ? ((heads - 1) / params.section_heads - section) % 2 != 0 : !C.rule.mask_right);
  work.n = params.first_key_block + (descends ? params.key_blocks - 1 - block : block);
  find_query_blocks<C>(params, work);
  work.direction = descends || !C.ordered ? 1 : -1;
  work.m_first = work.direction > 0 ? work.m_begin : work.m_end - 1;
  work.m_past = work.direction > 0 ? work.m_end : work.m_begin - 1;
  return work;
}

}  // namespace strobe::hopper::backward
