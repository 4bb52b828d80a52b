// SPDX-License-Identifier: Apache-2.0
// Keys and values of wide heads on their way to shared memory: slices of a block's columns, through one ring.
#pragma once

#include "kernels/sm80/forward/block_walk.h"
#include "kernels/sm80/forward/key_value_rows.h"

namespace strobe::sm80::forward {

/// Slices of one tile in the order of the walk: of each block those of K and then those of V. The CTA's threads meet in
/// next(): from then on none of them reads the slice before.
template <Config C>
class SliceRing {
 public:
  __device__ __forceinline__ SliceRing(const Params& params, const TileWork& work)
      : params_(params), source_(params, work), walk_(params, work) {}

  __device__ __forceinline__ BlockWalk<C>& walk() { return walk_; }

  /// Begins with block n; what else the thread has on its way (Q) belongs to the first slice.
  __device__ __forceinline__ void start(int n) {
    ahead_ = n;
#pragma unroll 1
    for (int slot = 0; slot + 1 < C.stages; ++slot) {
      start_slice(slot);
    }
  }

  /// Waits for the next slice, and starts what comes behind those on their way into the place of the one before.
  __device__ __forceinline__ uint32_t next() {
    ptx::cp_async_wait_group<C.stages - 2>();
    __syncthreads();
    start_slice(slot_ == 0 ? C.stages - 1 : slot_ - 1);
    const uint32_t slice = slot(slot_);
    slot_ = slot_ + 1 == C.stages ? 0 : slot_ + 1;
    return slice;
  }

 private:
  __device__ __forceinline__ static uint32_t slot(int number) {
    return shared_address(shared_memory()) + smem_plan(C).k + number * smem_plan(C).k_bytes;
  }

  __device__ __forceinline__ void start_slice(int number) {
    if (walk_.has(ahead_)) {
      const bool to_keys = ahead_slice_ < key_slices(C);
      const int column = (to_keys ? ahead_slice_ : ahead_slice_ - key_slices(C)) * C.slice_columns;
      const int own = first_own_column(C, params_);
      const bool of_keys = to_keys && column >= own;
      const int first_column = of_keys ? column - own : column;
      const int all = of_keys ? params_.head_dim - own : params_.head_dim_v;
      source_.template start<SliceTile<C>, threads_per_block(C), true>(
          slot(number), of_keys ? params_.k : params_.v, of_keys ? source_.keys() : source_.values(), ahead_,
          first_column, min(all - first_column, C.slice_columns));
      if (++ahead_slice_ == key_slices(C) + value_slices(C)) {
        ahead_slice_ = 0;
        ahead_ = walk_.before(ahead_);
      }
    }
    ptx::cp_async_commit_group();  // an empty one counts, too
  }

  const Params& params_;
  KeyValueSource<C> source_;
  BlockWalk<C> walk_;
  int slot_ = 0;   // of the next slice
  int ahead_ = 0;  // block and slice of it that are copied next
  int ahead_slice_ = 0;
};

}  // namespace strobe::sm80::forward
