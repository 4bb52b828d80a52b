// SPDX-License-Identifier: Apache-2.0
// The bias through shared memory: a producer brings each warpgroup its rows' bias of a block by TMA, into a ring of its
// own, and accumulator fragments read it from there.
#pragma once

#include "kernels/math/element.h"
#include "kernels/ptx/shared_memory.h"
#include "kernels/sm90/forward/barriers.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/tile_work.h"
#include "kernels/sm90/tile/fragment.h"
#include "kernels/sm90/tile/tensor_map.h"

namespace strobe::sm90::forward {

template <Config C>
struct BiasMapOf {
  using type = NoBiasMap;
};
template <Config C>
  requires(C.bias_stages > 0)
struct BiasMapOf<C> {
  using type = TensorMap;
};
template <Config C>
using BiasMap = typename BiasMapOf<C>::type;

/// The producer's side, by one thread: the blocks of every warpgroup in the order in which they are used.
template <Config C>
class BiasFeeder {
 public:
  __device__ __forceinline__ BiasFeeder(const TensorMap& map, const Params& params, const ScheduleOf<C>& schedule,
                                        unsigned char* smem, Barriers<C>& barriers)
      : map_(map),
        params_(params),
        scheduler_(params.tiles, params.sequences, schedule),
        smem_(smem + smem_plan(C).bias),
        barriers_(barriers) {
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

/// A block's bias of 16 bits where this thread's scores want it: four 8x8 matrices at a time.
template <Config C>
struct SharedBias {
  uint32_t row;  // where this lane's row of the first four matrices is
  uint32_t bits[4];

  __device__ __forceinline__ float2 pair(int index) {
    if (index % 4 == 0) {
      ptx::ldmatrix_x4(bits, row + index / 4 * 32);
    }
    return to_floats<C.rule.element>(bits[index % 4]);
  }
};

/// Of 32 bits: pair by pair.
template <Config C>
  requires(C.rule.bias_float32)
struct SharedBias<C> {
  uint32_t row;  // this thread's first pair of its first row
  uint32_t second_row;

  __device__ __forceinline__ float2 pair(int index) {
    return ptx::ld_shared_float2((index % 2 == 0 ? row : second_row) + index / 2 * 32);
  }
};

/// The consumer's side.
template <Config C>
class BiasRing {
 public:
  __device__ __forceinline__ BiasRing(unsigned char* smem, const Params& params, int warpgroup) {
    const auto first = static_cast<uint32_t>(
        __cvta_generic_to_shared(smem + smem_plan(C).bias + warpgroup * C.bias_stages * bias_bytes(C)));
    const uint32_t pitch = params.bias_boxes.rows == 1 ? 0 : bias_row_bytes(C);
    const int lane = threadIdx.x % kWarpSize;
    if constexpr (C.rule.bias_float32) {
      lane_ = first + warpgroup_row(0) * pitch + fragment_column() * 4;
      to_second_row_ = 8 * pitch;
    } else {
      lane_ = first + (warp_of_warpgroup() * kRowsPerWarp + lane % 16) * pitch + lane / 16 * 16;
    }
  }

  __device__ __forceinline__ SharedBias<C> wait_tile(Barriers<C>& barriers, int warpgroup) {
    wait<C>(barriers.bias_full[warpgroup][at_.stage], at_.parity);
    const uint32_t row = lane_ + at_.stage * bias_bytes(C);
    if constexpr (C.rule.bias_float32) {
      return {row, row + to_second_row_};
    } else {
      return {row, {}};
    }
  }

  __device__ __forceinline__ void release(Barriers<C>& barriers, int warpgroup) {
    arrive<C>(barriers.bias_empty[warpgroup][at_.stage]);
    at_.advance();
  }

 private:
  uint32_t lane_;
  uint32_t to_second_row_;
  RingPosition<C.bias_stages> at_;
};

template <Config C>
  requires(C.bias_stages == 0)
class BiasRing<C> {
 public:
  __device__ __forceinline__ BiasRing(unsigned char*, const Params&, int) {}
};

}  // namespace strobe::sm90::forward
