// One tile as numbers: which rows, which keys, where its sequence lies. Producers and consumers compute it alike.
#pragma once

#include "kernels/common/forward_params.h"
#include "kernels/common/kernel_config.h"
#include "kernels/hopper/scheduler/tile_scheduler.h"

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

struct TileWork {
  Tile tile;
  SequenceRows q, k;
  int m_begin;         // first row of this CTA's tile in its sequence
  int diagonal;        // key on query 0's diagonal: seqlen_k - seqlen_q, or 0
  int n_begin, n_end;  // key blocks that some row of the tile sees

  __device__ __forceinline__ int row_of(int warpgroup) const { return m_begin + warpgroup * kRowsPerWarpgroup; }
};

template <KernelConfig C>
__device__ __forceinline__ TileWork tile_work(const ForwardParams& params, const Tile& tile, int cluster_rank) {
  constexpr int kBlockM = block_m(C);
  TileWork work;
  work.tile = tile;
  if constexpr (C.varlen) {
    work.q = sequence_rows(params.cu_seqlens_q, params.seqused_q, params.seqlen_q, params.total_q, tile.sequence,
                           params.sequences);
    work.k = tile.sequence < params.sequences ? sequence_rows(params.cu_seqlens_k, params.seqused_k, params.seqlen_k, 0,
                                                              tile.sequence, params.sequences)
                                              : SequenceRows{0, 0, 0};
  } else {
    work.q = {0, params.seqlen_q, params.seqlen_q};
    work.k = {0, params.seqlen_k, params.seqlen_k};
  }
  work.m_begin = (tile.m * C.cluster + cluster_rank) * kBlockM;
  work.diagonal = params.bottom_right != 0 ? work.k.used - work.q.used : 0;

  // The cluster's CTAs share every K and V block, so the range is that of all their rows.
  const int row_first = tile.m * C.cluster * kBlockM;
  const int row_last = min(row_first + C.cluster * kBlockM, work.q.used) - 1;
  int key_end = work.k.used;
  int key_begin = 0;
  if constexpr (C.mask_right) {
    key_end = min(key_end, row_last + work.diagonal + params.mask_right + 1);
  }
  if constexpr (C.mask_left) {
    key_begin = max(0, row_first + work.diagonal - params.mask_left);
  }
  work.n_begin = key_begin / C.block_n;
  work.n_end = row_first < work.q.used ? (max(key_end, 0) + C.block_n - 1) / C.block_n : 0;
  if (key_begin >= key_end) {
    work.n_end = work.n_begin;
  }
  return work;
}

/// The end of the key blocks that one warpgroup's rows see; n_begin or less where they see none. Blocks from there to
/// n_end are other warpgroups': this one only lets them pass.
template <KernelConfig C>
__device__ __forceinline__ int n_end_of(const ForwardParams& params, const TileWork& work, int warpgroup) {
  const int row = work.row_of(warpgroup);
  if (row >= work.q.used) {
    return work.n_begin;
  }
  if constexpr (C.mask_right) {
    const int row_last = min(row + kRowsPerWarpgroup, work.q.used) - 1;
    const int key_end = row_last + work.diagonal + params.mask_right + 1;
    return min(work.n_end, (max(key_end, 0) + C.block_n - 1) / C.block_n);
  }
  return work.n_end;
}

}  // namespace strobe::hopper
