// SPDX-License-Identifier: Apache-2.0
// Where the keys and values of a tile lie, and copies of theirs to shared memory, row by row.
#pragma once

#include "kernels/sequence/cache.h"
#include "kernels/sm80/forward/tile_work.h"
#include "kernels/sm80/tile/copy.h"

namespace strobe::sm80::forward {

/// The keys and values of one tile.
template <Config C>
class KeyValueSource {
 public:
  __device__ __forceinline__ KeyValueSource(const Params& params, const TileWork& work)
      : params_(params), used_(work.k.used) {
    if constexpr (!C.pages) {
      int batch = k_batch(params, work);
      if constexpr (C.entries) {
        batch = sequence::cache_place<false, true>(params.cache, batch, 0).entry;
        used_ = batch == sequence::kNoEntry ? 0 : used_;
        batch = max(batch, 0);
      }
      const int head = head_kv_of(params, work);
      by_all_lanes([&] {
        rows().keys = params.k.row(batch, work.k.start, head);
        rows().values = params.v.row(batch, work.k.start, head);
      });
    }
  }

  /// Keys that exist.
  __device__ __forceinline__ int used() const { return used_; }

  __device__ __forceinline__ const unsigned short* keys() const { return rows().keys; }
  __device__ __forceinline__ const unsigned short* values() const { return rows().values; }

  /// Starts to copy rows of block n of `tensor`, K or V, whose first key is at `data` unless they are in pages:
  /// `columns` columns of 16 bits from `first_column` on. By `threads` threads.
  template <typename Tile, int threads, bool whole_lines>
  __device__ __forceinline__ void start(uint32_t tile, const Rows& tensor, const unsigned short* data, int n,
                                        int first_column, int columns) const {
    const int first = n * C.block_n;
    if constexpr (C.pages) {
      const TileWork work = tile_work<C>(params_);
      const sequence::CachedRows<C.rule.element, true, false> rows(
          params_.cache, params_.k, params_.v, work.tile.sequence, head_kv_of(params_, work), work.k.start);
      start_scattered_copy<Tile, C.block_n, threads, whole_lines>(tile, tensor.data, columns, [&](int row) {
        const unsigned short* const found = first + row < used_ ? rows.row_of(tensor, first + row) : nullptr;
        return found == nullptr ? nullptr : found + first_column;
      });
    } else {
      start_copy<Tile, C.block_n, threads, whole_lines>(tile, data + first * tensor.row_stride + first_column,
                                                        tensor.row_stride, used_ - first, columns);
    }
  }

 private:
  /// In shared memory, as they are four registers that the widest tiles lack: volatile, so that they stay there.
  __device__ __forceinline__ static volatile KeyValueRows& rows() {
    return reinterpret_cast<volatile KeyValueRows*>(shared_memory() + smem_plan(C).rows)[threadIdx.x / kWarpSize];
  }

  /// All lanes store the same numbers. In debug variants one does, as racecheck takes the others for a race.
  template <typename Store>
  __device__ __forceinline__ static void by_all_lanes(const Store& store) {
    if constexpr (C.debug) {
      meet_lanes<C>();
      if (lane_of_warp() == 0) {
        store();
      }
      meet_lanes<C>();
    } else {
      store();
    }
  }

  const Params& params_;
  int used_;
};

}  // namespace strobe::sm80::forward
