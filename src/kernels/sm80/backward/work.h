// SPDX-License-Identifier: Apache-2.0
// One item of work as numbers: a block of keys of one key head, and the query blocks that see it.
#pragma once

#include "kernels/score/backward_work.h"
#include "kernels/sm80/backward/config.h"
#include "kernels/sm80/backward/smem.h"
#include "kernels/sm80/tile/cta.h"

namespace strobe::sm80::backward {

using score::kFullWarp;
using score::kRowsPerThread;

using Params = BackwardParams;
using Work = score::KeyBlock;

static_assert(sizeof(Work) <= kWorkBytes);

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
  Work work{score::sequence_of<C.rule>(params, sequence)};
  work.sequence = sequence;
  work.head_kv = flat_head - sequence * params.heads_kv;
  work.n = within / count;
  score::find_query_blocks<C.rule, C.block_m, block_n(C)>(params, work);
  return work;
}

}  // namespace strobe::sm80::backward
