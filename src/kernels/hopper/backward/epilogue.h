// SPDX-License-Identifier: Apache-2.0
// dK and dV of a warpgroup's 64 keys: scaled, converted, and stored by TMA through the shared memory that K and V
// leave.
#pragma once

#include "kernels/hopper/backward/barriers.h"
#include "kernels/hopper/backward/producer.h"
#include "kernels/hopper/backward/scores.h"
#include "kernels/hopper/backward/smem.h"

namespace strobe::hopper::backward {

/// 64 x n accumulators to 64 rows of a tile of `tile_rows` rows, in TMA's swizzled panels.
template <Element element, int tile_rows, int n>
__device__ __forceinline__ void stage_rows(const float (&accumulators)[n], float factor, unsigned char* rows) {
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x % kWarpgroupSize / kWarpSize;
  const auto first = static_cast<uint32_t>(__cvta_generic_to_shared(rows)) + (warp * 16 + lane % 16) * kPanelRowBytes +
                     ((lane / 16) ^ (lane % 8)) * 16;
#pragma unroll
  for (int i = 0; i < n / 8; ++i) {
    uint32_t block[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      block[r] = pack<element>(accumulators[8 * i + 2 * r] * factor, accumulators[8 * i + 2 * r + 1] * factor);
    }
    ptx::stmatrix_x4((first ^ (i % 4 * 32)) + i / 4 * tile_rows * kPanelRowBytes, block);
  }
}

template <int columns, int tile_rows>
__device__ __forceinline__ void store_rows(const TensorMap& map, const unsigned char* rows, int row, int head,
                                           int batch) {
#pragma unroll
  for (int panel = 0; panel < panels(columns); ++panel) {
    const cuda::std::int32_t at[4] = {panel * kPanelColumns, row, head, batch};
    cptx::cp_async_bulk_tensor(cptx::space_global, cptx::space_shared, &map, at,
                               rows + panel * tile_rows * kPanelRowBytes);
  }
  cptx::cp_async_bulk_commit_group();
}

/// Returns when the tiles of K and V may be overwritten, for thread 0 of the warpgroup.
template <Config C>
__device__ __forceinline__ void store_gradients(const TensorMaps& maps, const Params& params, unsigned char* smem,
                                                int stage, const Work& work, int warpgroup,
                                                const float (&dk)[C.head_dim / 2],
                                                const float (&dv)[C.head_dim_v / 2]) {
  constexpr SmemPlan kPlan = smem_plan(C);
  const int offset = warpgroup * kRowsPerWarpgroup * kPanelRowBytes;
  unsigned char* k_rows = smem + kPlan.k + stage * kPlan.k_bytes + offset;
  unsigned char* v_rows = smem + kPlan.v + stage * kPlan.v_bytes + offset;
  const int row = work.n * block_n(C) + warpgroup * kRowsPerWarpgroup;
  const bool elected = threadIdx.x % kWarpgroupSize == 0;

  stage_rows<C.rule.element, block_n(C)>(dv, 1.0F, v_rows);  // these rows of V were read by this warpgroup alone
  cptx::fence_proxy_async(cptx::space_shared);
  ptx::bar_sync(kWarpgroup + warpgroup, kWarpgroupSize);
  if (elected) {
    store_rows<C.head_dim_v, block_n(C)>(maps.dv, v_rows, row, work.head_kv, work.batch);
  }
  ptx::bar_sync(kLastRead, kWarpgroupSize * C.consumer_warpgroups);
  stage_rows<C.rule.element, block_n(C)>(dk, params.scale, k_rows);
  cptx::fence_proxy_async(cptx::space_shared);
  ptx::bar_sync(kWarpgroup + warpgroup, kWarpgroupSize);
  if (elected) {
    store_rows<C.head_dim, block_n(C)>(maps.dk, k_rows, row, work.head_kv, work.batch);
    cptx::cp_async_bulk_wait_group_read(cptx::n32_t<0>{});
  }
}

/// Keys that no query sees.
template <Config C>
__device__ __forceinline__ void store_no_gradients(const Params& params, const Work& work, int warpgroup) {
  const int first = work.n * block_n(C) + warpgroup * (block_n(C) / C.consumer_warpgroups);
  const auto clear = [&](const Rows& rows, int columns) {
    for (int i = threadIdx.x % kWarpgroupSize; i < block_n(C) / C.consumer_warpgroups * columns / 8;
         i += kWarpgroupSize) {
      const int row = first + i / (columns / 8);
      if (row < params.seqlen_k) {
        *reinterpret_cast<uint4*>(rows.row(work.batch, row, work.head_kv) + i % (columns / 8) * 8) =
            make_uint4(0, 0, 0, 0);
      }
    }
  };
  clear(params.dk, params.head_dim);
  clear(params.dv, params.head_dim_v);
}

}  // namespace strobe::hopper::backward
