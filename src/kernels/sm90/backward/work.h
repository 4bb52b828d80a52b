// SPDX-License-Identifier: Apache-2.0
// One item of work as numbers: a block of keys of one key head, and the query heads and blocks that see it. Producer
// and consumers compute it alike.
#pragma once

#include "kernels/score/backward_work.h"
#include "kernels/sm90/backward/config.h"
#include "kernels/sm90/backward/params.h"

namespace strobe::sm90::backward {

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

struct Work : score::KeyBlock {
  int launch_head;                 // key head within this launch
  int group_first;                 // of the query heads that read the key head, this item's first one
  int m_first, m_past, direction;  // the way through them: from m_first by `direction`, 1 or -1, up to before m_past

  __device__ __forceinline__ int steps() const { return m_end - m_begin; }

  // Query heads of this item.
  template <Config C>
  __device__ __forceinline__ int query_heads(const Params& params) const {
    if constexpr (C.shares_keys) {
      return min(params.part_heads, params.heads_per_kv - group_first);
    } else {
      return params.heads_per_kv;
    }
  }
  template <Config C>
  __device__ __forceinline__ int first_query_head(const Params& params) const {
    if constexpr (C.shares_keys) {
      return head_kv * params.heads_per_kv + group_first;
    } else {
      return head_kv * params.heads_per_kv;
    }
  }

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
};

/// Items in order: sections of key heads; in a section, block 0 of every head, block 1 of every head, ... Under a
/// causal mask that is the longest first. Where items share blocks of keys, each part of a key head counts as a head
/// here: part 0 of every head, part 1 of every head, ... The last ones, which may be shorter, come last.
///
/// Where dQ's sums are added to in order (joint/query_gradient_semaphore.h), items of one head that start together on
/// the same queries wait for each other. Longest first, they all begin with the last queries, unless they start one
/// after the other, as those do that take the place of shorter ones. So under a causal mask every second section has
/// the shortest items first: these begin on the diagonal, each on other queries. The last section has the longest
/// first.
template <Config C>
__device__ __forceinline__ Work work_of(const Params& params, int item) {
  const int heads = params.items / params.key_blocks;
  const int section = item / (params.section_heads * params.key_blocks);
  const int first = section * params.section_heads;
  const int within = item - first * params.key_blocks;
  const int count = min(params.section_heads, heads - first);
  int flat_head = first + within % count;
  int group_first = 0;
  if constexpr (C.shares_keys) {
    const int part = flat_head / params.launch_heads;
    flat_head -= part * params.launch_heads;
    group_first = part * params.part_heads;
  }
  const int sequence = sequence_of_head<C.rule>(params, params.first_head_kv + flat_head);
  Work work{score::sequence_of<C.rule>(params, sequence)};
  work.sequence = sequence;
  work.head_kv = head_in_sequence<C.rule>(params, params.first_head_kv + flat_head, sequence);
  work.launch_head = flat_head;
  work.group_first = group_first;
  const int block = within / count;
  const bool descends =
      C.ordered && (C.alternates ? ((heads - 1) / params.section_heads - section) % 2 != 0 : !C.rule.mask_right);
  work.n = params.first_key_block + (descends ? params.key_blocks - 1 - block : block);
  score::find_query_blocks<C.rule, C.block_m, block_n(C)>(params, work);
  work.direction = descends || !C.ordered ? 1 : -1;
  work.m_first = work.direction > 0 ? work.m_begin : work.m_end - 1;
  work.m_past = work.direction > 0 ? work.m_end : work.m_begin - 1;
  return work;
}

}  // namespace strobe::sm90::backward
