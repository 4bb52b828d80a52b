// SPDX-License-Identifier: Apache-2.0
// dQ = scale dS K, where dS lies in global memory: tiles of 64 keys x 64 queries that the backward by roles wrote
// (../roles/gradient_role.h). Each consumer warpgroup holds dQ of 64 queries; one thread feeds dS and K through a ring
// of stages.
//
// Read in this order: config.h, what a variant is and what lies where; tile.h, which queries and keys a CTA has;
// feed_query_gradient() and consume_query_gradient() below, the producer and the consumers.
#pragma once

#include "kernels/ptx/grid.h"
#include "kernels/sequence/clear_rows.h"
#include "kernels/sm90/backward/barriers.h"
#include "kernels/sm90/backward/epilogue.h"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/backward/query_gradient/tile.h"
#include "kernels/sm90/ptx/cuda_ptx.h"
#include "kernels/sm90/ptx/wgmma.h"
#include "kernels/sm90/tile/descriptor.h"

namespace strobe::sm90::backward {

/// A warpgroup's dQ of 64 queries in the accumulators, as many columns as one WGMMA has in each part.
template <QueryGradientConfig C>
using QueryGradientParts = float[wgmma_parts(C)][wgmma_columns(C) / 2];

/// Full: a stage holds dS and K; 1 arrival and their bytes. Empty: no warp reads it any more; 1 arrival a warp.
template <QueryGradientConfig C>
struct QueryGradientBarriers {
  uint64_t full[C.stages], empty[C.stages];
};

/// The producer's side, by one thread, or by one warp where a block mask is searched: dS and K of every tile of keys.
template <QueryGradientConfig C>
__device__ __forceinline__ void feed_query_gradient(const QueryGradientMaps& maps, const Params& params,
                                                    unsigned char* smem, QueryGradientBarriers<C>& barriers) {
  constexpr QueryGradientSmemPlan kPlan = smem_plan(C);
  ptx::griddepcontrol_wait();
  const auto tile = QueryTile<C>::of(params, query_tile_number<C>());
  const SequenceStart keys = key_start<C.rule>(params, tile, tile.sequence, tile.k.used);
  RingPosition<C.stages> at{0, 1};
  KeyTiles<C> shown(params, tile);
  for (int n = shown.from(tile.tiles.begin, tile.tiles.end); n < tile.tiles.end;
       n = shown.from(n + 1, tile.tiles.end)) {
    if (threadIdx.x != 0) {
      continue;
    }
    unsigned char* stage = smem + at.stage * kPlan.stage_bytes;
    uint64_t& full = barriers.full[at.stage];
    wait<C>(barriers.empty[at.stage], at.parity);
    bool wanted[C.consumer_warpgroups];
    int bytes = tile_bytes(kScoreTile, C.head_dim);
#pragma unroll
    for (int w = 0; w < C.consumer_warpgroups; ++w) {
      const sequence::KeyBlocks own = tile.key_tiles(params, tile.m_first + w);
      wanted[w] = n >= own.begin && n < own.end;
      bytes += wanted[w] ? kScoreTileBytes : 0;
    }
    expect(full, bytes);
    const long long row = static_cast<long long>(tile.launch_head) * params.key_blocks + n - params.first_key_block;
    const long long index = row * query_tiles<C>(params) + tile.m_first;
#pragma unroll
    for (int w = 0; w < C.consumer_warpgroups; ++w) {
      if (wanted[w]) {
        cptx::cp_async_bulk(cptx::space_cluster, cptx::space_global, stage + w * kScoreTileBytes,
                            params.ds + (index + w) * kScoreTileBytes, kScoreTileBytes, &full);
      }
    }
    load_tile<C.head_dim, kScoreTile>(maps.k, keys, n * kScoreTile, tile.head / params.heads_per_kv, stage + kPlan.k,
                                      full, first_column<C>(), last_panel(params.head_dim));
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

__device__ __forceinline__ bool is_last_launch(const Params& params) {
  return params.first_key_block + params.key_blocks == params.n_blocks;
}

/// Adds what the launches before summed of a tile of 64 queries, and keeps the sum where another launch follows.
template <QueryGradientConfig C>
__device__ __forceinline__ void add_launches_before(const Params& params, const QueryTile<C>& tile, int m,
                                                    QueryGradientParts<C>& dq) {
  const long long all = static_cast<long long>(tile.launch_head) * query_tiles<C>(params) + m;
  const long long number = all * C.column_parts + first_column<C>() / C.head_dim;
  auto* sums =
      reinterpret_cast<float4*>(params.dq_before + number * (kScoreTile * C.head_dim)) + threadIdx.x % kWarpgroupSize;
#pragma unroll
  for (int part = 0; part < wgmma_parts(C); ++part) {
#pragma unroll
    for (int i = 0; i < wgmma_columns(C) / 2; i += 4) {
      float* x = &dq[part][i];
      float4& sum = sums[(part * wgmma_columns(C) / 8 + i / 4) * kWarpgroupSize];
      if (params.first_key_block > 0) {
        const float4 before = sum;
        x[0] += before.x;
        x[1] += before.y;
        x[2] += before.z;
        x[3] += before.w;
      }
      if (!is_last_launch(params)) {
        sum = {x[0], x[1], x[2], x[3]};
      }
    }
  }
}

/// Rows of a sequence without a query, by one warpgroup. Those behind the last sequence may be more than its tiles:
/// hence the stride.
template <QueryGradientConfig C>
__device__ __forceinline__ void clear_query_tile(const Params& params, const QueryTile<C>& tile, int m) {
  for (int row = m * kScoreTile; row < tile.q.owned; row += query_tiles<C>(params) * kScoreTile) {
    clear_rows(params.dq, params.head_dim, score::q_batch(params, tile.sequence), tile.head, tile.q.start + row,
               tile.q.start + min(row + kScoreTile, tile.q.owned), threadIdx.x % kWarpgroupSize, kWarpgroupSize);
  }
}

/// dQ = dS K of block m of 64 queries, over the key tiles that it sees. Those of the CTA that it does not see are let
/// pass.
template <QueryGradientConfig C>
__device__ __forceinline__ void multiply_tiles(const Params& params, const QueryTile<C>& tile, int m,
                                               unsigned char* smem, QueryGradientBarriers<C>& barriers, int warpgroup,
                                               QueryGradientParts<C>& dq) {
  constexpr QueryGradientSmemPlan kPlan = smem_plan(C);
  const sequence::KeyBlocks own = tile.key_tiles(params, m);
  RingPosition<C.stages> at;
  KeyTiles<C> shown(params, tile);
  const auto let_pass = [&](int from, int to) {
    for (int n = shown.from(from, to); n < to; n = shown.from(n + 1, to)) {
      wait<C>(barriers.full[at.stage], at.parity);
      arrive<C>(barriers.empty[at.stage]);
      at.advance();
    }
  };
  const int first = shown.from(own.begin, own.end);
  if (first < own.end) {
    let_pass(tile.tiles.begin, own.begin);
    wait<C>(barriers.full[at.stage], at.parity);
    multiply_stage<C, false>(dq, smem + at.stage * kPlan.stage_bytes, warpgroup);
    int before = at.stage;
    at.advance();
    for (int n = shown.from(first + 1, own.end); n < own.end; n = shown.from(n + 1, own.end)) {
      wait<C>(barriers.full[at.stage], at.parity);
      multiply_stage<C, true>(dq, smem + at.stage * kPlan.stage_bytes, warpgroup);
      wait_for_products<C, 1>(dq);
      arrive<C>(barriers.empty[before]);
      before = at.stage;
      at.advance();
    }
    wait_for_products<C, 0>(dq);
    arrive<C>(barriers.empty[before]);
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
}

/// dQ of block m of 64 queries, scaled and converted, to its rows by way of the ring, which all warpgroups have left.
template <QueryGradientConfig C>
__device__ __forceinline__ void store_query_gradient(const QueryGradientMaps& maps, const Params& params,
                                                     const QueryTile<C>& tile, int m, unsigned char* smem,
                                                     int warpgroup, const QueryGradientParts<C>& dq) {
  unsigned char* rows = smem + warpgroup * tile_bytes(kRowsPerWarpgroup, C.head_dim);
  const int row = m * kRowsPerWarpgroup;
  bool finite = true;
#pragma unroll
  for (int part = 0; part < wgmma_parts(C); ++part) {
    unsigned char* part_rows = rows + part * tile_bytes(kRowsPerWarpgroup, wgmma_columns(C));
    finite = stage_rows<C.rule, kRowsPerWarpgroup>(dq[part], score::gradient_scale<C.rule>(params, tile.k.used),
                                                   tile.q.used - row, part_rows) &&
             finite;
  }
  cptx::fence_proxy_async(cptx::space_shared);
  const bool repair = ptx::bar_red_or(kWarpgroup + warpgroup, kWarpgroupSize, !finite);
  if (threadIdx.x % kWarpgroupSize == 0 && row < tile.q.owned) {
    const SequenceStart start = query_start<C.rule>(params, tile, tile.sequence, tile.q.owned);
    store_rows<C.head_dim, kRowsPerWarpgroup>(maps.dq, start, row, tile.head, rows, first_column<C>(), params.head_dim);
    cptx::cp_async_bulk_wait_group_read(cptx::n32_t<0>{});
  }
  if (is_masked(C.rule) && repair) {
    finish_stores(kWarpgroup + warpgroup);
    const int begin = row + warp_of_warpgroup() * kRowsPerWarp;
    repair_queries<C.rule, C.head_dim>(params, tile, tile.sequence, tile.head, C.block_m, begin, begin + kRowsPerWarp,
                                       first_column<C>());
  }
}

/// The consumers' side: dQ of 64 queries of this CTA's tile, by the warpgroup of that number.
template <QueryGradientConfig C>
__device__ __forceinline__ void consume_query_gradient(const QueryGradientMaps& maps, const Params& params,
                                                       unsigned char* smem, QueryGradientBarriers<C>& barriers,
                                                       int warpgroup) {
  ptx::griddepcontrol_wait();  // not all of a tile's reads come after a stage that the producer has filled
  const auto tile = QueryTile<C>::of(params, query_tile_number<C>());
  const int m = tile.m_first + warpgroup;
  if (C.rule.varlen && tile.q.used == 0) {
    clear_query_tile<C>(params, tile, m);
    return;
  }
  QueryGradientParts<C> dq;
  multiply_tiles<C>(params, tile, m, smem, barriers, warpgroup, dq);
  if (params.key_blocks != params.n_blocks && m < query_tiles<C>(params)) {
    add_launches_before<C>(params, tile, m, dq);
  }
  if (!is_last_launch(params)) {
    return;
  }
  ptx::bar_sync(kLastRead, kWarpgroupSize * C.consumer_warpgroups);  // the ring is free
  store_query_gradient<C>(maps, params, tile, m, smem, warpgroup, dq);
}

/// Grid: (query_tiles / consumer_warpgroups, rounded up) * query heads of this launch * column_parts.
template <QueryGradientConfig C>
__global__ void __launch_bounds__(threads_per_block(C), 1)
    query_gradient(const __grid_constant__ QueryGradientMaps maps,
                   const __grid_constant__ sequence::KernelParams<C.rule, Params> params) {
  extern __shared__ __align__(1024) unsigned char smem[];
  auto& barriers = *reinterpret_cast<QueryGradientBarriers<C>*>(smem + smem_plan(C).barriers);
  if (threadIdx.x == 0) {
    for (int s = 0; s < C.stages; ++s) {
      cptx::mbarrier_init(&barriers.full[s], 1);
      cptx::mbarrier_init(&barriers.empty[s], kWarpsPerWarpgroup * C.consumer_warpgroups * kWarpArrivals<C.debug>);
    }
    cptx::fence_mbarrier_init(cptx::sem_release, cptx::scope_cluster);
  }
  poison<C.debug>(smem, smem_plan(C).barriers);
  ptx::griddepcontrol_launch_dependents();
  __syncthreads();
  const int warpgroup = __shfl_sync(kFullWarp, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<C.consumer_warpgroups >= 3 ? 32 : 40>();
    if (threadIdx.x < (C.rule.block_mask != 0 ? kWarpSize : 1)) {
      feed_query_gradient<C>(maps, params, smem, barriers);
    }
  } else {
    ptx::setmaxnreg_inc<C.consumer_warpgroups >= 3 ? 160 : 232>();
    consume_query_gradient<C>(maps, params, smem, barriers, warpgroup - 1);
  }
}

}  // namespace strobe::sm90::backward
