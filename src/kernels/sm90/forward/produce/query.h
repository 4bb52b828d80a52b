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

/// Panels [first, end) of a warpgroup's rows of Q, the tile's from `first_row` on; `rows` is where its sequence begins.
template <Config C>
__device__ __forceinline__ void load_query_panels(const Context<C>& context, const TileWork& work,
                                                  const SequenceStart& rows, int first, int end, int first_row,
                                                  unsigned char* destination, uint64_t& full) {
  constexpr int kBytes = tile_bytes(kRowsPerWarpgroup, kPanelColumns);
  const auto load = [&](const TensorMap& map, int panel) {
    load_panel<(C.packed_heads > 1)>(map, query_box<C>(rows, panel * kColumns<C>, first_row, work.tile.head),
                                     destination, full);
    destination += kBytes;
  };
  if constexpr (C.rule.query_values) {
    const int own = first_own_column(C, context.params) / kColumns<C>;
#pragma unroll 1
    for (int panel = first; panel < min(end, own); ++panel) {
      load(context.other, panel);
    }
#pragma unroll 1
    for (int panel = max(first, own); panel < end; ++panel) {
      load(context.q, panel - own);
    }
  } else {
    for (int panel = first; panel < end; ++panel) {
      load(context.q, panel);
    }
  }
}

/// Each warpgroup's 64 rows of Q, as soon as that warpgroup has done its last Q K^T from the same stage.
template <Config C>
class QueryFeeder {
 public:
  __device__ __forceinline__ explicit QueryFeeder(const Context<C>& context)
      : context_(context), scheduler_(context.params, context.schedule) {
    for (auto& position : at_) {
      position.parity = 1;
    }
  }

  /// The next tile's rows, which stay for all of its segments. False when there is none.
  __device__ __forceinline__ bool feed() {
    const Params& params = context_.params;
    TileWork work = before_;
    if (!next_work<C>(scheduler_, params, work)) {
      return false;
    }
    if constexpr (folds(C)) {
      before_ = work;
      if (!work.begins_tile) {
        return true;
      }
    }
    BlockWalk<C> walk(params, work);
    const SequenceStart rows = query_start<C>(params, work, work.q.used);
#pragma unroll
    for (int w = 0; w < C.consumer_warpgroups; ++w) {
      const int first = folds(C) ? work.tile_begin : n_begin_of<C>(params, work, w);
      if constexpr (kMaskRows<C> > 1) {
        walk = {params, work, w};
      }
      if (walk.own_end(n_end_of<C>(params, work, w)) <= first) {
        continue;
      }
      const int stage = at_[w].stage;
      uint64_t& full = context_.barriers.q_full[w][stage];
      wait<C>(context_.barriers.q_empty[w][stage], at_[w].parity);
      if (this_thread_feeds<C>()) {
        expect(full, kPlan.q_bytes);
        unsigned char* destination = context_.smem + kPlan.q + (w * C.q_stages + stage) * kPlan.q_bytes;
        load_query_panels(context_, work, rows, kFirstPanel, kRowPanels<C>, work.row_of(w), destination, full);
      }
      at_[w].advance();
    }
    return true;
  }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);
  static constexpr int kFirstPanel = C.register_columns / kColumns<C>;  // those before go another way

  const Context<C>& context_;
  Scheduler<C> scheduler_;
  TileWork before_{};  // where segments are joined: what was fed last
  RingPosition<C.q_stages> at_[C.consumer_warpgroups];
};

/// Wide loops: 64 columns of a tile's rows of Q, to a stage of the ring of K: by the thread that feeds.
template <Config C>
__device__ __forceinline__ void load_query_panel(const Context<C>& context, const TileWork& work, int column,
                                                 unsigned char* destination, uint64_t& full) {
  static_assert(smem_plan(C).k_bytes == tile_bytes(kRowsPerWarpgroup, kPanelColumns));
  const SequenceStart rows = query_start<C>(context.params, work, work.q.used);
  expect(full, smem_plan(C).k_bytes);
  const int panel = column / kPanelColumns;
  load_query_panels(context, work, rows, panel, panel + 1, work.m_begin, destination, full);
}

/// Wide loops: a tile's columns of Q that stay in shared memory: by the thread that feeds.
template <Config C>
__device__ __forceinline__ void load_shared_queries(const Context<C>& context, const TileWork& work,
                                                    unsigned char* destination, uint64_t& full) {
  const SequenceStart rows = query_start<C>(context.params, work, work.q.used);
  expect(full, smem_plan(C).q_bytes);
  load_query_panels(context, work, rows, panels(C.register_columns), panels(C.head_dim), work.m_begin, destination,
                    full);
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
  const int panel = first / kPanelColumns;
  load_query_panels(context, work, rows, panel, panel + count, work.m_begin, destination, full);
}

}  // namespace strobe::sm90::forward
