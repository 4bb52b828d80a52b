// SPDX-License-Identifier: Apache-2.0
// What consumers are told of a stage of K under a block mask: its block, what the mask says of it, and the bits of a
// block that is shown in part.
#pragma once

#include "kernels/sm90/forward/barriers.h"
#include "kernels/sm90/forward/tile/blocks.h"
#include "kernels/sm90/ptx/cuda_ptx.h"

namespace strobe::sm90::forward {

template <Config C, bool stops>
class KeyCursor;

/// Of the cursor's block. Without tags, and of V, nothing is told.
template <Config C, bool values>
class KeyTags {
 public:
  using Cursor = KeyCursor<C, false>;

  __device__ __forceinline__ explicit KeyTags(Cursor&) {}
  __device__ __forceinline__ static void store(unsigned char*, int) {}
  __device__ __forceinline__ static int bits_bytes() { return 0; }
  __device__ __forceinline__ static void load_bits(const Params&, const Cursor&, unsigned char*, int, uint64_t&) {}
};

template <Config C>
  requires(has_key_tags(C))
class KeyTags<C, false> {
 public:
  using Cursor = KeyCursor<C, true>;

  /// By whole warps.
  __device__ __forceinline__ explicit KeyTags(Cursor& cursor)
      : tag_(cursor.has_none() ? KeyTag{} : cursor.walk().tag(cursor.block())) {}

  /// By the thread that feeds, before it announces the stage's bytes: that makes it known.
  __device__ __forceinline__ void store(unsigned char* smem, int stage) const {
    reinterpret_cast<KeyTag*>(smem + kPlan.tags)[stage] = tag_;
  }

  /// What arrives beside K.
  __device__ __forceinline__ int bits_bytes() const {
    int bytes = 0;
#pragma unroll
    for (int row = 0; row < kMaskRows<C>; ++row) {
      bytes += has_bits(row) ? kRowBytes : 0;
    }
    return bytes;
  }

  __device__ __forceinline__ void load_bits(const Params& params, const Cursor& cursor, unsigned char* smem, int stage,
                                            uint64_t& full) const {
#pragma unroll
    for (int row = 0; row < kMaskRows<C>; ++row) {
      if (has_bits(row)) {
        cuda::ptx::cp_async_bulk(cuda::ptx::space_cluster, cuda::ptx::space_global,
                                 smem + kPlan.bits + stage * block_bits_bytes(C) + row * kRowBytes,
                                 cursor.walk().bits(params, cursor.work(), row, cursor.block()), kRowBytes, &full);
      }
    }
  }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);
  static constexpr int kRowBytes = block_bits_bytes(C) / kMaskRows<C>;  // of the tile's rows of one row of blocks

  __device__ __forceinline__ bool has_bits(int row) const {
    return brings_block_bits(C) && tag_.is_seen(row) && !tag_.is_whole(row);
  }

  KeyTag tag_;
};

}  // namespace strobe::sm90::forward
