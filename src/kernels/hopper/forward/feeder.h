// Feeders bring Q, K and V to shared memory by TMA: one each, driven by one thread. Each walks over the tiles by
// itself, into a ring of its own, so none waits for another's consumers.
//
// Coordinates are {column, row, row offset, head, batch}; where heads are packed, those of Q and O {column, head, row,
// row offset, batch}. Batched tensors use row offset 0. In varlen variants the map's row dimension ends where the
// sequence does (see src/hopper: its base is shifted back by `bound` rows): row i of a sequence of `count` rows is
// {bound - count
// + i, start + count}, and rows beyond it are outside the tensor: TMA reads zeros there, never a neighbour's values,
// and writes nothing.
#pragma once

#include <cuda/ptx>

#include "kernels/hopper/forward/barriers.h"
#include "kernels/hopper/forward/smem.h"
#include "kernels/hopper/forward/tile_work.h"

namespace strobe::hopper {

namespace cptx = cuda::ptx;

struct RowCoordinates {
  int row, offset, batch;
};

/// Of the `count` rows from row `start` on.
template <KernelConfig C>
__device__ __forceinline__ RowCoordinates row_coordinates(int start, int count, bool packed, int bound, int sequence) {
  if constexpr (C.varlen) {
    return {bound - count, start + count, packed ? 0 : sequence};
  } else {
    return {0, 0, sequence};
  }
}

struct Coordinates {
  cuda::std::int32_t at[5];
};

/// A box of Q or O that begins with a tile's row.
template <KernelConfig C>
__device__ __forceinline__ Coordinates query_box(const RowCoordinates& rows, int column, int row, int head) {
  if constexpr (C.packed_heads > 1) {
    return {{column, head * C.packed_heads + row % C.packed_heads, rows.row + row / C.packed_heads, rows.offset,
             rows.batch}};
  } else {
    return {{column, rows.row + row, rows.offset, head, rows.batch}};
  }
}

__device__ __forceinline__ void expect(uint64_t& full, int bytes) {
  cptx::mbarrier_arrive_expect_tx(cptx::sem_release, cptx::scope_cta, cptx::space_shared, &full, bytes);
}

/// One box of 64 columns, to this CTA or, where `ctas` is more than one, to the same place in each CTA of the cluster.
template <int ctas>
__device__ __forceinline__ void load_panel(const TensorMap& map, const Coordinates& box, unsigned char* destination,
                                           uint64_t& full) {
  if constexpr (ctas == 1) {
    cptx::cp_async_bulk_tensor(cptx::space_cluster, cptx::space_global, destination, &map, box.at, &full);
  } else {
    constexpr cuda::std::uint16_t kEveryCta = (1U << ctas) - 1;
    cptx::cp_async_bulk_tensor(cptx::space_cluster, cptx::space_global, destination, &map, box.at, &full, kEveryCta);
  }
}

/// Each warpgroup's 64 rows of Q, as soon as that warpgroup has done its last Q K^T from the same stage.
template <KernelConfig C>
class QueryFeeder {
 public:
  __device__ __forceinline__ QueryFeeder(const TensorMap& map, const ForwardParams& params,
                                         const ScheduleOf<C>& schedule, unsigned char* smem, Barriers<C>& barriers,
                                         int cluster_rank)
      : map_(map),
        params_(params),
        scheduler_(params, schedule),
        smem_(smem + kPlan.q),
        barriers_(barriers),
        cluster_rank_(cluster_rank) {
    for (auto& position : at_) {
      position.parity = 1;
    }
  }

  /// The next tile's rows. False when there is none.
  __device__ __forceinline__ bool feed() {
    Tile tile;
    if (!scheduler_.next(tile)) {
      return false;
    }
    const TileWork work = tile_work<C>(params_, tile, cluster_rank_);
    const RowCoordinates rows =
        row_coordinates<C>(work.q.start, work.q.used, params_.cu_seqlens_q != nullptr, params_.seqlen_q, tile.sequence);
#pragma unroll
    for (int w = 0; w < C.consumer_warpgroups; ++w) {
      if (n_end_of<C>(params_, work, w) <= work.n_begin) {
        continue;
      }
      const int stage = at_[w].stage;
      uint64_t& full = barriers_.q_full[w][stage];
      wait<C>(barriers_.q_empty[w][stage], at_[w].parity);
      expect(full, kPlan.q_bytes);
      unsigned char* destination = smem_ + (w * C.q_stages + stage) * kPlan.q_bytes;
      for (int panel = 0; panel < panels(C.head_dim); ++panel) {
        load_panel<1>(map_, query_box<C>(rows, panel * kPanelColumns, work.row_of(w), tile.head),
                      destination + panel * tile_bytes(kRowsPerWarpgroup, kPanelColumns), full);
      }
      at_[w].advance();
    }
    return true;
  }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);

  const TensorMap& map_;
  const ForwardParams& params_;
  TileScheduler<C> scheduler_;
  unsigned char* smem_;
  Barriers<C>& barriers_;
  const int cluster_rank_;
  RingPosition<C.q_stages> at_[C.consumer_warpgroups];
};

/// Blocks of K or of V, right to left over each tile. In a cluster each CTA loads its share of every block's rows, for
/// all.
template <KernelConfig C, int kHeadDim>
class KeyFeeder {
 public:
  using StageBarriers = uint64_t (&)[C.stages];

  __device__ __forceinline__ KeyFeeder(const TensorMap& map, const ForwardParams& params, const ScheduleOf<C>& schedule,
                                       unsigned char* ring, StageBarriers full, StageBarriers empty, int cluster_rank)
      : map_(map),
        params_(params),
        scheduler_(params, schedule),
        ring_(ring),
        full_(full),
        empty_(empty),
        cluster_rank_(cluster_rank) {}

  /// The next block, of the next tile where this one's are done. False when there is none.
  __device__ __forceinline__ bool feed() {
    while (n_ <= work_.n_begin) {
      Tile tile;
      if (!scheduler_.next(tile)) {
        return false;
      }
      work_ = tile_work<C>(params_, tile, cluster_rank_);
      n_ = work_.n_end;
    }
    --n_;
    const RowCoordinates rows = row_coordinates<C>(work_.k.start, work_.k.used, params_.cu_seqlens_k != nullptr,
                                                   params_.seqlen_k, work_.tile.sequence);
    const int first = rows.row + n_ * C.block_n + cluster_rank_ * kRows;
    const int head = params_.by_heads_per_kv.quotient(work_.tile.head);
    uint64_t& full = full_[at_.stage];
    wait<C>(empty_[at_.stage], at_.parity);
    expect(full, kStageBytes);
    unsigned char* destination = ring_ + at_.stage * kStageBytes + cluster_rank_ * kRows * kPanelRowBytes;
    for (int panel = 0; panel < panels(kHeadDim); ++panel) {
      load_panel<C.cluster>(map_, {{panel * kPanelColumns, first, rows.offset, head, rows.batch}},
                            destination + panel * tile_bytes(C.block_n, kPanelColumns), full);
    }
    at_.advance();
    return true;
  }

 private:
  static constexpr int kStageBytes = tile_bytes(C.block_n, kHeadDim);
  static constexpr int kRows = C.block_n / C.cluster;

  const TensorMap& map_;
  const ForwardParams& params_;
  TileScheduler<C> scheduler_;
  unsigned char* ring_;
  StageBarriers full_;
  StageBarriers empty_;
  const int cluster_rank_;
  TileWork work_{};
  int n_ = 0;  // blocks [work_.n_begin, n_) are still to come
  RingPosition<C.stages> at_{0, 1};
};

/// The three of them, made from what the kernel was given.
template <KernelConfig C>
struct Feeders {
  const TensorMap& q;
  const TensorMap& k;
  const TensorMap& v;
  const TensorMap& o;
  const ForwardParams& params;
  const ScheduleOf<C>& schedule;
  unsigned char* smem;
  Barriers<C>& barriers;
  int cluster_rank;

  __device__ __forceinline__ QueryFeeder<C> queries() const {
    return {q, params, schedule, smem, barriers, cluster_rank};
  }
  __device__ __forceinline__ KeyFeeder<C, C.head_dim> keys() const {
    return {k, params, schedule, smem + smem_plan(C).k, barriers.k_full, barriers.k_empty, cluster_rank};
  }
  __device__ __forceinline__ KeyFeeder<C, C.head_dim_v> values() const {
    return {v, params, schedule, smem + smem_plan(C).v, barriers.v_full, barriers.v_empty, cluster_rank};
  }
};

}  // namespace strobe::hopper
