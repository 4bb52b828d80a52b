// O and LSE, from a warpgroup's registers to global memory.
#pragma once

#include "kernels/common/forward_params.h"
#include "kernels/common/online_softmax.h"
#include "kernels/hopper/forward/tile_work.h"
#include "kernels/hopper/tile/fragment.h"

namespace strobe::hopper {

constexpr int kStoreColumns = 8;  // 16 bytes: one thread's store

__device__ __forceinline__ unsigned short* output_row(const ForwardParams& params, const TileWork& work, int row) {
  return params.o.row(params.cu_seqlens_q != nullptr ? 0 : work.tile.sequence, work.q.start + row, work.tile.head);
}

__device__ __forceinline__ void store_lse(const ForwardParams& params, const TileWork& work, int row, float value) {
  if (params.lse != nullptr) {
    const int batch = params.cu_seqlens_q != nullptr ? 0 : work.tile.sequence;
    params.lse[batch * params.lse_batch_stride + work.tile.head * params.lse_head_stride + work.q.start + row] = value;
  }
}

/// Divides by the row's sum and stores. Four threads that share a row first gather eight columns each, so that a store
/// is 16 bytes and a quad's stores are 64 bytes in a row. A row without a visible key gives O = 0 and LSE = -inf.
/// False if this thread of a masked variant stored a value that is not finite.
template <KernelConfig C>
__device__ __forceinline__ bool store_tile(const ForwardParams& params, const TileWork& work, int warpgroup,
                                           float (&o)[C.head_dim_v / 2], const OnlineSoftmax<C>& softmax) {
  const int quad_lane = threadIdx.x % 4;
  float zero[4] = {};  // one becomes NaN if a value is not finite
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const int row = work.row_of(warpgroup) + fragment_row(r);
    const bool exists = row < work.q.used;
    const bool sees = exists && softmax.sum[r] != 0.0F;
    const float inverse = ptx::rcp_approx(softmax.sum[r]);
    if (quad_lane == 0 && row < work.q.owned) {
      store_lse(params, work, row, exists ? softmax.lse(r) : kMinusInfinity);
    }
    unsigned short* destination = output_row(params, work, row);
#pragma unroll
    for (int block = 0; block < C.head_dim_v; block += 4 * kStoreColumns) {
      cuda::std::uint32_t packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = &o[block / 2 + 4 * i + 2 * r];
        packed[i] = sees ? pack<C.element>(pair[0] * inverse, pair[1] * inverse) : 0U;
        if constexpr (C.mask_left || C.mask_right) {
          zero[i] = __fmaf_rn(pair[0], 0.0F, __fmaf_rn(pair[1], 0.0F, zero[i]));
        }
      }
      transpose_quad(packed);
      const int column = block + kStoreColumns * quad_lane;
      if (row < work.q.owned && column < params.head_dim_v) {
        *reinterpret_cast<uint4*>(destination + column) = make_uint4(packed[0], packed[1], packed[2], packed[3]);
      }
    }
  }
  return zero[0] + zero[1] + zero[2] + zero[3] == 0.0F;
}

/// A warpgroup's part of a tile none of whose rows sees a key. Rows behind the last sequence may be more than one
/// tile's: hence the stride.
template <KernelConfig C>
__device__ __forceinline__ void store_nothing_visible(const ForwardParams& params, const TileWork& work,
                                                      int warpgroup) {
  const int chunks = params.head_dim_v / kStoreColumns;
  for (int first = work.row_of(warpgroup); first < work.q.owned; first += params.m_tiles * C.cluster * block_m(C)) {
    const int rows = min(kRowsPerWarpgroup, work.q.owned - first);
    for (int i = threadIdx.x % kWarpgroupSize; i < rows * chunks; i += kWarpgroupSize) {
      const int row = first + i / chunks;
      *reinterpret_cast<uint4*>(output_row(params, work, row) + i % chunks * kStoreColumns) = make_uint4(0, 0, 0, 0);
      if (i % chunks == 0) {
        store_lse(params, work, row, kMinusInfinity);
      }
    }
  }
}

}  // namespace strobe::hopper
