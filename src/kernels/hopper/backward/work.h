// SPDX-License-Identifier: Apache-2.0
// One item of work as numbers: a block of keys of one key head, and the query blocks that see it. Producer and
// consumers compute it alike.
#pragma once

#include "kernels/hopper/backward/config.h"
#include "kernels/hopper/backward/params.h"

namespace strobe::hopper::backward {

struct Work {
  int batch, head_kv;
  int launch_head;     // key head within this launch
  int n;               // key block
  int m_begin, m_end;  // query blocks that see some of its keys
  int m_full, m_left;  // those in [m_full, m_left) see all of them: no mask

  __device__ __forceinline__ int steps() const { return m_end - m_begin; }

  /// Whether all queries of the block see all keys.
  template <Config C>
  __device__ __forceinline__ bool sees_all(int m) const {
    return m >= m_full && (!C.rule.mask_left || m < m_left);
  }
};

/// Items in order: sections of key heads; in a section, block 0 of every head, block 1 of every head, ... Under a
/// causal mask that is the longest first.
template <Config C>
__device__ __forceinline__ Work work_of(const Params& params, int item) {
  constexpr int kBlockN = block_n(C);
  Work work;
  const int heads = params.items / params.n_blocks;
  const int section = item / (params.section_heads * params.n_blocks);
  const int first = section * params.section_heads;
  const int within = item - first * params.n_blocks;
  const int count = min(params.section_heads, heads - first);
  const int flat_head = first + within % count;
  work.n = within / count;
  work.launch_head = flat_head;
  work.batch = (params.first_head_kv + flat_head) / params.heads_kv;
  work.head_kv = params.first_head_kv + flat_head - work.batch * params.heads_kv;

  const int key_first = work.n * kBlockN;
  const int key_last = key_first + kBlockN - 1;
  work.m_begin = 0;
  work.m_end = params.m_blocks;
  work.m_full = 0;
  work.m_left = params.m_blocks;
  if constexpr (C.rule.mask_right) {
    const int see_first = max(0, key_first - params.diagonal - params.window_right);
    const int see_all = max(0, key_last - params.diagonal - params.window_right);
    work.m_begin = min(see_first / C.block_m, params.m_blocks);
    work.m_full = (see_all + C.block_m - 1) / C.block_m;
  }
  if constexpr (C.rule.mask_left) {
    const int last = min(key_last, params.seqlen_k - 1) + params.window_left - params.diagonal;
    const int last_all = key_first + params.window_left - params.diagonal;
    work.m_end = max(work.m_begin, min(work.m_end, last < 0 ? 0 : last / C.block_m + 1));
    work.m_left = last_all < 0 ? 0 : (last_all + 1) / C.block_m;
  }
  if (key_last >= params.seqlen_k) {
    work.m_full = params.m_blocks;  // keys that do not exist
  }
  return work;
}

}  // namespace strobe::hopper::backward
