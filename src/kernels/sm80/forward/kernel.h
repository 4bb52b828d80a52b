// SPDX-License-Identifier: Apache-2.0
// FlashAttention-2's forward: O = softmax(mask(softcap(scale Q K^T))) V and LSE, with mma.sync, on every GPU since
// sm_80.
//
// A CTA computes one tile of queries; its warps share the keys and values that arrive in shared memory by cp.async, and
// each owns some of the rows. Several CTAs are resident on a multiprocessor.
//
// In the order in which to read:
//   config.h, smem.h     what a variant is, and where everything lies in shared memory
//   tile.h               the loop: TileForward::step
//   ../../score/apply.h, mask.h, softmax.h    what a step does to its scores
//   ../tile/gemm.h, swizzled.h    the two products, and how their operands lie
//   loader.h             copies ahead of their use
//   sliced_tile.h        wide heads: warps that share rows, and slices of keys and values
//   merge.h              groups of warps that took turns at the keys
//   kept_rows.h          row-invariant calls: segments of keys, one joining those after it
//   epilogue.h           O and LSE to global memory
//   tile_work.h          which tile a CTA computes
//   block_walk.h, exact_rows.h    block masks; non-finite values
//
// Source: Dao, "FlashAttention-2" (2023), algorithm 1 and section 3.3.
#pragma once

#include "kernels/ptx/grid.h"
#include "kernels/scheduler/split_scheduler.h"
#include "kernels/sm80/forward/config.h"
#include "kernels/sm80/forward/params.h"
#include "kernels/sm80/forward/sliced_tile.h"
#include "kernels/sm80/forward/smem.h"
#include "kernels/sm80/forward/tile.h"

namespace strobe::sm80::forward {

template <Config C>
__device__ __forceinline__ void compute_tile(const Params& params, const TileWork& work) {
  BlockWalk<C> walk(params, work);
  if (walk.any(work)) {
    if constexpr (sliced(C)) {
      SlicedForward<C>(params, work).run();
    } else {
      TileForward<C>(params, work).run();
    }
  } else {
    store_without_keys<C>(params, work);
  }
}

/// Split schedules: this CTA's share of the key blocks of all tiles.
template <Config C>
__device__ __forceinline__ void compute_share(const Params& params) {
  make_split_work<tiling(C)>(params, params.split, split_work<C>());
  __syncthreads();
  SplitScheduler<tiling(C)> scheduler(params, split_work<C>());
  for (Tile tile; scheduler.next(tile);) {
    const TileWork work = work_of<C>(params, tile);
    share_work<C>(work);
    if (threadIdx.x == 0) {
      store_sharers(params.split, params.tiles.heads, params.tiles.m_tiles, tile);
    }
    compute_tile<C>(params, work);
  }
  clear_unused_rows<C>(params);
}

/// Tiles whose keys have segments: this CTA's tiles one after another, and the segments of each from right to left.
template <Config C>
__device__ __forceinline__ void compute_segments(const Params& params) {
  for (int round = 0;; round = shared_work<C>().round + 1) {
    // Tiles become shorter: every other round the other way round, so that CTAs have about as much to do.
    const int within = round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
    const int index = round * static_cast<int>(gridDim.x) + within;
    if (index >= params.tile_count) {
      return;
    }
    TileWork work = work_of<C>(params, tile_at(params.tiles, index));
    work.round = round;
    work.tile_begin = work.n_begin;
    work.tile_end = work.n_end;
    do {
      if (work.n_end > work.tile_begin) {
        work.n_begin = max(work.tile_begin, (work.n_end - 1) / C.segment_blocks * C.segment_blocks);
      }
      share_work<C>(work);
      compute_tile<C>(params, shared_work<C>());
      work = shared_work<C>();
      work.n_end = work.n_begin;
    } while (work.n_end > work.tile_begin);
  }
}

/// Grid: tiles, or the CTAs that share them.
template <Config C>
__global__ void __launch_bounds__(threads_per_block(C), C.ctas_per_sm)
    kernel(const __grid_constant__ sequence::KernelParams<C.rule, Params> params) {
  static_assert(fields_agree(C));
  if constexpr (C.debug) {
    for (int i = threadIdx.x; i < smem_plan(C).total_bytes / 4; i += threads_per_block(C)) {
      reinterpret_cast<unsigned*>(shared_memory())[i] = ~0U;
    }
    __syncthreads();
  }
  if constexpr (overlaps_previous(C)) {
    ptx::griddepcontrol_wait();
  }
  if constexpr (splits(C)) {
    ptx::griddepcontrol_launch_dependents();  // combine waits for this grid's end
    compute_share<C>(params);
  } else if constexpr (folds(C)) {
    compute_segments<C>(params);
  } else {
    const TileWork work = work_of<C>(params, tile_of_cta(params.tiles));
    if constexpr (C.keeps_work) {
      share_work<C>(work);
    }
    compute_tile<C>(params, work);
  }
}

}  // namespace strobe::sm80::forward
