// SPDX-License-Identifier: Apache-2.0
// The bias to shared memory: TMA brings each warpgroup its rows' bias of a block, into a ring of its own.
#pragma once

#include "kernels/sm90/forward/barriers.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/tile/assignment.h"
#include "kernels/sm90/tile/tensor_map.h"

namespace strobe::sm90::forward {

/// The producer's side, by one thread: the blocks of every warpgroup in the order in which they are used.
template <Config C>
class BiasFeeder {
 public:
  __device__ __forceinline__ BiasFeeder(const TensorMap& map, const Params& params, const ScheduleOf<C>& schedule,
                                        unsigned char* smem, Barriers<C>& barriers)
      : map_(map), params_(params), scheduler_(params, schedule), smem_(smem + smem_plan(C).bias), barriers_(barriers) {
    for (auto& position : at_) {
      position.parity = 1;
    }
  }

  /// The next tile's blocks. False when there is none.
  __device__ __forceinline__ bool feed() {
    Tile tile;
    if (!scheduler_.next(tile)) {
      return false;
    }
    const TileWork work = tile_work<C>(params_, tile);
    for (int n = work.n_end - 1; n >= work.n_begin; --n) {
#pragma unroll
      for (int w = 0; w < C.consumer_warpgroups; ++w) {
        if (n_begin_of<C>(params_, work, w) <= n && n < n_end_of<C>(params_, work, w)) {
          load(work, w, n);
        }
      }
    }
    return true;
  }

 private:
  __device__ __forceinline__ void load(const TileWork& work, int w, int n) {
    const BiasBoxParams& boxes = params_.bias_boxes;
    const int stage = at_[w].stage;
    uint64_t& full = barriers_.bias_full[w][stage];
    wait<C>(barriers_.bias_empty[w][stage], at_[w].parity);
    expect(full, boxes.rows * bias_row_bytes(C));
    const int32_t box[4] = {n * C.block_n, boxes.rows == 1 ? 0 : work.row_of(w), work.tile.head * boxes.per_head,
                            work.tile.sequence * boxes.per_batch};
    cuda::ptx::cp_async_bulk_tensor(cuda::ptx::space_cluster, cuda::ptx::space_global,
                                    smem_ + (w * C.bias_stages + stage) * bias_bytes(C), &map_, box, &full);
    at_[w].advance();
  }

  const TensorMap& map_;
  const Params& params_;
  Scheduler<C> scheduler_;
  unsigned char* smem_;
  Barriers<C>& barriers_;
  RingPosition<C.bias_stages> at_[C.consumer_warpgroups];
};

}  // namespace strobe::sm90::forward
