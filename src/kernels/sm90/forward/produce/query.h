// SPDX-License-Identifier: Apache-2.0
// Q to shared memory by TMA.
#pragma once

#include "kernels/sm90/forward/barriers.h"
#include "kernels/sm90/forward/context.h"
#include "kernels/sm90/forward/produce/stage.h"
#include "kernels/sm90/forward/tile/assignment.h"
#include "kernels/sm90/forward/tile/blocks.h"
#include "kernels/sm90/forward/tile/rows.h"

namespace strobe::sm90::forward {

/// Each warpgroup's 64 rows of Q, as soon as that warpgroup has done its last Q K^T from the same stage.
template <Config C>
class QueryFeeder {
 public:
  __device__ __forceinline__ QueryFeeder(const TensorMap& map, const Params& params, const ScheduleOf<C>& schedule,
                                         unsigned char* smem, Barriers<C>& barriers)
      : map_(map), params_(params), scheduler_(params, schedule), smem_(smem + kPlan.q), barriers_(barriers) {
    for (auto& position : at_) {
      position.parity = 1;
    }
  }

  /// The next tile's rows, which stay for all of its segments. False when there is none.
  __device__ __forceinline__ bool feed() {
    TileWork work = before_;
    if (!next_work<C>(scheduler_, params_, work)) {
      return false;
    }
    if constexpr (folds(C)) {
      before_ = work;
      if (!work.begins_tile) {
        return true;
      }
    }
    BlockWalk<C> walk(params_, work);
    const SequenceStart rows = query_start<C>(params_, work, work.q.used);
#pragma unroll
    for (int w = 0; w < C.consumer_warpgroups; ++w) {
      const int first = folds(C) ? work.tile_begin : n_begin_of<C>(params_, work, w);
      if (walk.own_end(n_end_of<C>(params_, work, w), w) <= first) {
        continue;
      }
      const int stage = at_[w].stage;
      uint64_t& full = barriers_.q_full[w][stage];
      wait<C>(barriers_.q_empty[w][stage], at_[w].parity);
      if (this_thread_feeds<C>()) {
        expect(full, kPlan.q_bytes);
        unsigned char* destination = smem_ + (w * C.q_stages + stage) * kPlan.q_bytes;
        for (int panel = kFirstPanel; panel < kRowPanels<C>; ++panel) {
          load_panel<(C.packed_heads > 1)>(
              map_, query_box<C>(rows, panel * kColumns<C>, work.row_of(w), work.tile.head),
              destination + (panel - kFirstPanel) * tile_bytes(kRowsPerWarpgroup, kPanelColumns), full);
        }
      }
      at_[w].advance();
    }
    return true;
  }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);
  static constexpr int kFirstPanel = C.register_columns / kColumns<C>;  // those before go another way

  const TensorMap& map_;
  const Params& params_;
  Scheduler<C> scheduler_;
  TileWork before_{};  // where segments are joined: what was fed last
  unsigned char* smem_;
  Barriers<C>& barriers_;
  RingPosition<C.q_stages> at_[C.consumer_warpgroups];
};

template <Config C>
__device__ __forceinline__ QueryFeeder<C> query_feeder(const Context<C>& context) {
  return {context.q, context.params, context.schedule, context.smem, context.barriers};
}

/// Wide loops: 64 columns of a tile's rows of Q, to a stage of the ring of K.
template <Config C>
__device__ __forceinline__ void load_query_panel(const Context<C>& context, const TileWork& work, int column,
                                                 unsigned char* destination, uint64_t& full) {
  static_assert(smem_plan(C).k_bytes == tile_bytes(kRowsPerWarpgroup, kPanelColumns));
  if (this_thread_feeds<C>()) {
    const SequenceStart rows = query_start<C>(context.params, work, work.q.used);
    expect(full, smem_plan(C).k_bytes);
    load_panel<(C.packed_heads > 1)>(context.q, query_box<C>(rows, column, work.m_begin, work.tile.head), destination,
                                     full);
  }
}

/// Wide loops: a tile's rows of Q where all of them stay in shared memory: by the thread that feeds.
template <Config C>
__device__ __forceinline__ void load_queries(const Context<C>& context, const TileWork& work,
                                             unsigned char* destination, uint64_t& full) {
  const SequenceStart rows = query_start<C>(context.params, work, work.q.used);
  expect(full, smem_plan(C).q_bytes);
  for (int column = 0; column < C.head_dim; column += kPanelColumns) {
    load_panel<(C.packed_heads > 1)>(context.q, query_box<C>(rows, column, work.m_begin, work.tile.head), destination,
                                     full);
    destination += tile_bytes(kRowsPerWarpgroup, kPanelColumns);
  }
}

/// Where V is K's first columns: a tile's columns of Q that one stage takes on their way to registers: by the thread
/// that feeds.
template <Config C>
__device__ __forceinline__ void load_query_piece(const Context<C>& context, const TileWork& work, int first,
                                                 unsigned char* destination, uint64_t& full) {
  constexpr int kPanelBytes = tile_bytes(kRowsPerWarpgroup, kPanelColumns);
  const int count = min(kSharedColumns, C.register_columns - first) / kPanelColumns;
  const SequenceStart rows = query_start<C>(context.params, work, work.q.used);
  expect(full, count * kPanelBytes);
  for (int panel = 0; panel < count; ++panel) {
    load_panel<(C.packed_heads > 1)>(context.q,
                                     query_box<C>(rows, first + panel * kPanelColumns, work.m_begin, work.tile.head),
                                     destination + panel * kPanelBytes, full);
  }
}

}  // namespace strobe::sm90::forward
