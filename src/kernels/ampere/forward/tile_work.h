// SPDX-License-Identifier: Apache-2.0
// One tile as numbers: which rows, which keys, where its sequence lies.
#pragma once

#include "kernels/ampere/forward/config.h"
#include "kernels/ampere/forward/params.h"
#include "kernels/ampere/tile/cta.h"
#include "kernels/ampere/tile/gemm.h"
#include "kernels/score/visible_keys.h"

namespace strobe::ampere::forward {

using score::kFullWarp;
using score::kRowsPerThread;

struct TileWork : score::Sequence {
  int sequence;        // batch index
  int head;            // of q
  int m_begin;         // first row of the tile in its sequence
  int n_begin, n_end;  // key blocks that some row of the tile sees
};

/// The key on the diagonal of a row.
__device__ __forceinline__ int center_of(const TileWork& work, int row) { return row + work.diagonal; }

/// The keys that a row sees.
template <Config C>
__device__ __forceinline__ score::KeyRange keys_of(const Params& params, const TileWork& work, int row) {
  return score::visible_keys<C.rule>(params.visibility, work, center_of(work, row));
}

/// Blocks of keys that some of the rows [first, first + rows) see.
template <Config C>
__device__ __forceinline__ score::KeyBlocks key_blocks(const Params& params, const TileWork& work, int first,
                                                       int rows) {
  const int last = min(first + rows, work.q.used) - 1;
  if (last < first) {
    return {0, 0};
  }
  return score::key_blocks<C.block_n>(keys_of<C>(params, work, first), keys_of<C>(params, work, last));
}

/// The tile of this CTA. What is found here anew need not be kept in registers meanwhile: hence `volatile`.
template <Config C>
__device__ __forceinline__ TileWork tile_work(const Params& params) {
  int index;
  asm volatile("mov.u32 %0, %%ctaid.x;\n" : "=r"(index));
  const TileOrder& order = params.tiles;
  const int section = order.by_section.quotient(index);
  const int within = order.by_section.remainder(index);
  const Divisor& by_heads = section < order.full_sections ? order.by_section_heads : order.by_last;
  const int flat_head = section * order.section_heads + by_heads.remainder(within);
  const int sequence = order.by_heads.quotient(flat_head);
  TileWork work{score::sequence_of<C.rule>(params.sequences, params.visibility, sequence)};
  work.sequence = sequence;
  work.head = order.by_heads.remainder(flat_head);
  work.m_begin = (order.m_tiles - 1 - by_heads.quotient(within)) * block_m(C);
  const score::KeyBlocks blocks = key_blocks<C>(params, work, work.m_begin, block_m(C));
  work.n_begin = blocks.begin;
  work.n_end = blocks.end;
  return work;
}

/// Batch indices of the tensors: packed ones have one batch.
__device__ __forceinline__ int q_batch(const Params& params, const TileWork& work) {
  return params.sequences.cu_seqlens_q != nullptr ? 0 : work.sequence;
}
__device__ __forceinline__ int k_batch(const Params& params, const TileWork& work) {
  return params.sequences.cu_seqlens_k != nullptr ? 0 : work.sequence;
}

__device__ __forceinline__ int kv_head(const Params& params, const TileWork& work) {
  return params.by_heads_per_kv.quotient(work.head);
}

/// Counted through the batch.
__device__ __forceinline__ int head_in_batch(const Params& params, const TileWork& work) {
  return work.sequence * params.tiles.heads + work.head;
}

__device__ __forceinline__ unsigned short* output_row(const Params& params, const TileWork& work, int row) {
  return params.o.row(q_batch(params, work), work.q.start + row, work.head);
}

}  // namespace strobe::ampere::forward
