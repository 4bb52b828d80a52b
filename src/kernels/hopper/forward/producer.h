// The producer's side: three warps, one each for Q, K and V, whose elected lane walks over the tiles and issues TMA.
// Each has a ring (or buffer) of its own, so none waits for another's consumer.
//
// Coordinates are {column, row, row offset, head, batch}. Batched tensors use row offset 0. In varlen variants the map's
// row dimension ends where the sequence does (see src/plan: base is shifted back by `bound` rows): row i of a sequence of
// `used` rows is {bound - used + i, start + used}, and rows beyond it are outside the tensor, so TMA writes zeros
// there and never a neighbour's values.
#pragma once

#include <cuda/ptx>

#include "kernels/common/smem_plan.h"
#include "kernels/hopper/forward/barriers.h"
#include "kernels/hopper/forward/tile_work.h"

namespace strobe::hopper {

namespace cptx = cuda::ptx;

struct RowCoordinates {
  int row, offset, batch;
};

template <KernelConfig C>
__device__ __forceinline__ RowCoordinates row_coordinates(const SequenceRows& rows, bool packed, int bound, int sequence) {
  if constexpr (C.varlen) {
    return {bound - rows.used, rows.start + rows.used, packed ? 0 : sequence};
  } else {
    return {0, 0, sequence};
  }
}

/// One box of 64 columns, to this CTA or, where `mask` names several, to the same place in each CTA of the cluster.
template <KernelConfig C>
__device__ __forceinline__ void load_panel(const TensorMap& map, const RowCoordinates& rows, int column, int row, int head,
                                           unsigned char* destination, uint64_t& full) {
  const cuda::std::int32_t coordinates[5] = {column, rows.row + row, rows.offset, head, rows.batch};
  if constexpr (C.cluster == 1) {
    cptx::cp_async_bulk_tensor(cptx::space_cluster, cptx::space_global, destination, &map, coordinates, &full);
  } else {
    constexpr cuda::std::uint16_t kEveryCta = (1U << C.cluster) - 1;
    cptx::cp_async_bulk_tensor(cptx::space_cluster, cptx::space_global, destination, &map, coordinates, &full, kEveryCta);
  }
}

/// Each warpgroup's 64 rows of Q, as soon as that warpgroup has done its last Q K^T from the same stage.
template <KernelConfig C>
__device__ __forceinline__ void produce_q(const TensorMap& map, const ForwardParams& params, const TileListOf<C>& list,
                                          unsigned char* smem, Barriers<C>& barriers, int cluster_rank) {
  constexpr SmemPlan kPlan = smem_plan(C);
  constexpr KernelConfig kAlone = [] {
    KernelConfig config = C;
    config.cluster = 1;  // each CTA has its own rows
    return config;
  }();
  TileScheduler<C> scheduler(params, list);
  RingPosition<C.q_stages> at[C.consumer_warpgroups];
  for (auto& position : at) {
    position.parity = 1;
  }
  for (Tile tile; scheduler.next(tile);) {
    const TileWork work = tile_work<C>(params, tile, cluster_rank);
    const RowCoordinates rows =
        row_coordinates<C>(work.q, params.cu_seqlens_q != nullptr, params.seqlen_q, tile.sequence);
#pragma unroll
    for (int w = 0; w < C.consumer_warpgroups; ++w) {
      if (n_end_of<C>(params, work, w) <= work.n_begin) {
        continue;
      }
      uint64_t& full = barriers.q_full[w][at[w].stage];
      wait<C>(barriers.q_empty[w][at[w].stage], at[w].parity);
      cptx::mbarrier_arrive_expect_tx(cptx::sem_release, cptx::scope_cta, cptx::space_shared, &full, kPlan.q_bytes);
      unsigned char* destination = smem + kPlan.q + (w * C.q_stages + at[w].stage) * kPlan.q_bytes;
      for (int panel = 0; panel < panels(C.head_dim); ++panel) {
        load_panel<kAlone>(map, rows, panel * kPanelColumns, work.row_of(w), tile.head,
                           destination + panel * tile_bytes(kRowsPerWarpgroup, kPanelColumns), full);
      }
      at[w].advance();
    }
  }
}

/// Fills one ring, K's or V's, right to left over each tile's key blocks. In a cluster each CTA loads its share of the
/// rows of every block, for all.
template <KernelConfig C, int kHeadDim>
__device__ __forceinline__ void produce_kv(const TensorMap& map, const ForwardParams& params, const TileListOf<C>& list,
                                           unsigned char* ring, uint64_t (&full)[C.stages], uint64_t (&empty)[C.stages], int cluster_rank) {
  constexpr int kStageBytes = tile_bytes(C.block_n, kHeadDim);
  constexpr int kRows = C.block_n / C.cluster;
  TileScheduler<C> scheduler(params, list);
  RingPosition<C.stages> position{0, 1};
  for (Tile tile; scheduler.next(tile);) {
    const TileWork work = tile_work<C>(params, tile, cluster_rank);
    const RowCoordinates rows =
        row_coordinates<C>(work.k, params.cu_seqlens_k != nullptr, params.seqlen_k, tile.sequence);
    const int head = tile.head / params.heads_per_kv;
    for (int n = work.n_end - 1; n >= work.n_begin; --n) {
      uint64_t& stage_full = full[position.stage];
      wait<C>(empty[position.stage], position.parity);
      cptx::mbarrier_arrive_expect_tx(cptx::sem_release, cptx::scope_cta, cptx::space_shared, &stage_full, kStageBytes);
      unsigned char* destination = ring + position.stage * kStageBytes + cluster_rank * kRows * kPanelRowBytes;
      for (int panel = 0; panel < panels(kHeadDim); ++panel) {
        load_panel<C>(map, rows, panel * kPanelColumns, n * C.block_n + cluster_rank * kRows, head,
                      destination + panel * tile_bytes(C.block_n, kPanelColumns), stage_full);
      }
      position.advance();
    }
  }
}

}  // namespace strobe::hopper
