// SPDX-License-Identifier: Apache-2.0
// dQ = scale dS K, where dS lies in global memory: tiles of 64 keys x 64 queries that the backward by roles wrote
// (roles.h). Each consumer warpgroup holds dQ of 64 queries; one thread feeds dS and K through a ring of stages.
#pragma once

#include <cuda/ptx>

#include "kernels/hopper/backward/barriers.h"
#include "kernels/hopper/backward/epilogue.h"
#include "kernels/hopper/backward/params.h"
#include "kernels/hopper/ptx/grid.h"
#include "kernels/hopper/ptx/wgmma.h"
#include "kernels/hopper/tile/descriptor.h"

namespace strobe::hopper::backward {

struct QueryGradientConfig {
  ScoreRule rule;
  int head_dim = 256;
  int consumer_warpgroups = 3;  // each owns 64 queries
  int stages = 4;

  bool operator==(const QueryGradientConfig&) const = default;
};

constexpr int kScoreTile = 64;  // keys, and queries, of a tile of dS
constexpr int kScoreTileBytes = tile_bytes(kScoreTile, kScoreTile);

struct QueryGradientSmemPlan {
  int k = 0;  // within a stage; dS of warpgroup w is at w * kScoreTileBytes
  int stage_bytes = 0;
  int barriers = 0;
  int total_bytes = 0;
};

constexpr QueryGradientSmemPlan smem_plan(const QueryGradientConfig& c) {
  QueryGradientSmemPlan plan;
  plan.k = c.consumer_warpgroups * kScoreTileBytes;
  plan.stage_bytes = plan.k + tile_bytes(kScoreTile, c.head_dim);
  plan.barriers = c.stages * plan.stage_bytes;
  plan.total_bytes = plan.barriers + 2 * 8 * c.stages;
  return plan;
}

// Columns of one WGMMA: more accumulators would pass what a thread of three warpgroups is launched with.
constexpr int wgmma_columns(const QueryGradientConfig& c) { return c.head_dim < 128 ? c.head_dim : 128; }
constexpr int wgmma_parts(const QueryGradientConfig& c) { return c.head_dim / wgmma_columns(c); }

template <QueryGradientConfig C>
using QueryGradientParts = float[wgmma_parts(C)][wgmma_columns(C) / 2];

constexpr int threads_per_block(const QueryGradientConfig& c) { return kWarpgroupSize * (c.consumer_warpgroups + 1); }

/// The tensor maps of dQ's kernel: boxes of 64 rows.
struct QueryGradientMaps {
  TensorMap k, dq;
};

/// Key tiles [begin, end) that some query of a block of 64 sees.
struct KeyTiles {
  int begin, end;
};

template <QueryGradientConfig C>
__device__ __forceinline__ KeyTiles key_tiles(const Params& params, int m) {
  if (m >= params.m_blocks) {
    return {0, 0};
  }
  const int center = m * kScoreTile + params.diagonal;
  KeyTiles tiles{0, params.n_blocks};
  if constexpr (C.rule.mask_right) {
    const int last = center + kScoreTile - 1 + params.window_right;
    tiles.end = last < 0 ? 0 : min(tiles.end, last / kScoreTile + 1);
  }
  if constexpr (C.rule.mask_left) {
    tiles.begin = max(0, center - params.window_left) / kScoreTile;
  }
  return {min(tiles.begin, tiles.end), tiles.end};
}

/// One tile of dQ as numbers.
template <QueryGradientConfig C>
struct QueryTile {
  int m_first, launch_head, head, batch;
  KeyTiles tiles;  // of all its warpgroups

  __device__ __forceinline__ explicit QueryTile(const Params& params) {
    m_first = (gridDim.x - 1 - blockIdx.x) * C.consumer_warpgroups;  // the longest first
    launch_head = blockIdx.y;
    const int flat = params.first_head_kv * params.heads_per_kv + launch_head;
    batch = flat / params.heads;
    head = flat - batch * params.heads;
    tiles = {params.n_blocks, 0};
#pragma unroll
    for (int w = 0; w < C.consumer_warpgroups; ++w) {
      const KeyTiles own = key_tiles<C>(params, m_first + w);
      if (own.begin < own.end) {
        tiles = {min(tiles.begin, own.begin), max(tiles.end, own.end)};
      }
    }
  }
};

template <QueryGradientConfig C>
struct QueryGradientBarriers {
  uint64_t full[C.stages], empty[C.stages];
};

template <QueryGradientConfig C>
__device__ __forceinline__ void feed_query_gradient(const QueryGradientMaps& maps, const Params& params,
                                                    unsigned char* smem, QueryGradientBarriers<C>& barriers) {
  constexpr QueryGradientSmemPlan kPlan = smem_plan(C);
  constexpr int kPanelBytes = kScoreTile * kPanelRowBytes;
  const QueryTile<C> tile(params);
  ptx::griddepcontrol_wait();
  RingPosition<C.stages> at{0, 1};
  for (int n = tile.tiles.begin; n < tile.tiles.end; ++n) {
    unsigned char* stage = smem + at.stage * kPlan.stage_bytes;
    uint64_t& full = barriers.full[at.stage];
    wait(barriers.empty[at.stage], at.parity);
    bool wanted[C.consumer_warpgroups];
    int bytes = panels(C.head_dim) * kPanelBytes;
#pragma unroll
    for (int w = 0; w < C.consumer_warpgroups; ++w) {
      const KeyTiles own = key_tiles<C>(params, tile.m_first + w);
      wanted[w] = n >= own.begin && n < own.end;
      bytes += wanted[w] ? kScoreTileBytes : 0;
    }
    expect(full, bytes);
    const long long index =
        (static_cast<long long>(tile.launch_head) * params.n_blocks + n) * params.m_blocks + tile.m_first;
#pragma unroll
    for (int w = 0; w < C.consumer_warpgroups; ++w) {
      if (wanted[w]) {
        cptx::cp_async_bulk(cptx::space_cluster, cptx::space_global, stage + w * kScoreTileBytes,
                            params.ds + (index + w) * kScoreTileBytes, kScoreTileBytes, &full);
      }
    }
#pragma unroll
    for (int panel = 0; panel < panels(C.head_dim); ++panel) {
      const cuda::std::int32_t box[4] = {panel * kPanelColumns, n * kScoreTile, tile.head / params.heads_per_kv,
                                         tile.batch};
      cptx::cp_async_bulk_tensor(cptx::space_cluster, cptx::space_global, stage + kPlan.k + panel * kPanelBytes,
                                 &maps.k, box, &full);
    }
    at.advance();
  }
}

/// dQ (+)= dS K of one stage.
template <QueryGradientConfig C, bool accumulate>
__device__ __forceinline__ void multiply_stage(QueryGradientParts<C>& dq, unsigned char* stage, int warpgroup) {
  constexpr int kPartBytes = tile_bytes(kScoreTile, wgmma_columns(C));
  const Descriptor ds = descriptor_mn_major(stage + warpgroup * kScoreTileBytes, kScoreTile);
  const Descriptor k = descriptor_mn_major(stage + smem_plan(C).k, kScoreTile);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kScoreTile / 16; ++step) {
#pragma unroll
    for (int part = 0; part < wgmma_parts(C); ++part) {
      const Descriptor columns = k + (part * (kPartBytes >> 4) + mn_major_step(step));
      if (step == 0) {
        ptx::wgmma_ss_mn<C.rule.element, accumulate>(dq[part], ds, columns);
      } else {
        ptx::wgmma_ss_mn<C.rule.element, true>(dq[part], ds + mn_major_step(step), columns);
      }
    }
  }
  ptx::wgmma_commit_group();
}

/// Waits until at most `pending` products are unfinished.
template <QueryGradientConfig C, int pending>
__device__ __forceinline__ void wait_for_products(QueryGradientParts<C>& dq) {
#pragma unroll
  for (int part = 0; part < wgmma_parts(C); ++part) {
    ptx::wgmma_wait_group<pending>(dq[part]);
  }
}

template <QueryGradientConfig C>
__device__ __forceinline__ void consume_query_gradient(const QueryGradientMaps& maps, const Params& params,
                                                       unsigned char* smem, QueryGradientBarriers<C>& barriers,
                                                       int warpgroup) {
  constexpr QueryGradientSmemPlan kPlan = smem_plan(C);
  const QueryTile<C> tile(params);
  const int m = tile.m_first + warpgroup;
  const KeyTiles own = key_tiles<C>(params, m);
  RingPosition<C.stages> at;
  const auto let_pass = [&](int from, int to) {
    for (int n = from; n < to; ++n) {
      wait(barriers.full[at.stage], at.parity);
      arrive_once(barriers.empty[at.stage]);
      at.advance();
    }
  };
  QueryGradientParts<C> dq;
  if (own.begin < own.end) {
    let_pass(tile.tiles.begin, own.begin);
    wait(barriers.full[at.stage], at.parity);
    multiply_stage<C, false>(dq, smem + at.stage * kPlan.stage_bytes, warpgroup);
    int before = at.stage;
    at.advance();
    for (int n = own.begin + 1; n < own.end; ++n) {
      wait(barriers.full[at.stage], at.parity);
      multiply_stage<C, true>(dq, smem + at.stage * kPlan.stage_bytes, warpgroup);
      wait_for_products<C, 1>(dq);
      arrive_once(barriers.empty[before]);
      before = at.stage;
      at.advance();
    }
    wait_for_products<C, 0>(dq);
    arrive_once(barriers.empty[before]);
    let_pass(own.end, tile.tiles.end);
  } else {
#pragma unroll
    for (int part = 0; part < wgmma_parts(C); ++part) {
#pragma unroll
      for (int i = 0; i < wgmma_columns(C) / 2; ++i) {
        dq[part][i] = 0.0F;
      }
    }
    let_pass(tile.tiles.begin, tile.tiles.end);
  }
  ptx::bar_sync(kLastRead, kWarpgroupSize * C.consumer_warpgroups);  // the ring is free
  unsigned char* rows = smem + warpgroup * tile_bytes(kRowsPerWarpgroup, C.head_dim);
#pragma unroll
  for (int part = 0; part < wgmma_parts(C); ++part) {
    stage_rows<C.rule.element, kRowsPerWarpgroup>(dq[part], params.scale,
                                                  rows + part * tile_bytes(kRowsPerWarpgroup, wgmma_columns(C)));
  }
  cptx::fence_proxy_async(cptx::space_shared);
  ptx::bar_sync(kWarpgroup + warpgroup, kWarpgroupSize);
  if (threadIdx.x % kWarpgroupSize == 0 && m < params.m_blocks) {
    store_rows<C.head_dim, kRowsPerWarpgroup>(maps.dq, rows, m * kRowsPerWarpgroup, tile.head, tile.batch);
    cptx::cp_async_bulk_wait_group_read(cptx::n32_t<0>{});
  }
}

/// Grid: {tiles of 64 x consumer_warpgroups queries, query heads of this launch}.
template <QueryGradientConfig C>
__global__ void __launch_bounds__(threads_per_block(C), 1)
    query_gradient(const __grid_constant__ QueryGradientMaps maps, const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) unsigned char smem[];
  auto& barriers = *reinterpret_cast<QueryGradientBarriers<C>*>(smem + smem_plan(C).barriers);
  if (threadIdx.x == 0) {
    for (int s = 0; s < C.stages; ++s) {
      cptx::mbarrier_init(&barriers.full[s], 1);
      cptx::mbarrier_init(&barriers.empty[s], kWarpsPerWarpgroup * C.consumer_warpgroups);
    }
    cptx::fence_mbarrier_init(cptx::sem_release, cptx::scope_cluster);
  }
  ptx::griddepcontrol_launch_dependents();
  __syncthreads();
  const int warpgroup = __shfl_sync(kFullWarp, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<C.consumer_warpgroups >= 3 ? 32 : 40>();
    if (threadIdx.x == 0) {
      feed_query_gradient<C>(maps, params, smem, barriers);
    }
  } else {
    ptx::setmaxnreg_inc<C.consumer_warpgroups >= 3 ? 160 : 232>();
    consume_query_gradient<C>(maps, params, smem, barriers, warpgroup - 1);
  }
}

}  // namespace strobe::hopper::backward
