// SPDX-License-Identifier: Apache-2.0
// Wide loops whose V is K's first columns: K out of pages row by row, by cp.async.
#pragma once

#include "kernels/sm90/forward/produce/wide_row_feeder.h"

namespace strobe::sm90::forward {

/// One of kSharedRowWarps warps.
template <Config C>
class SharedRowsFeeder : private CopiedRowsFeeder<C, C.block_n / kSharedRowWarps> {
  using Base = CopiedRowsFeeder<C, C.block_n / kSharedRowWarps>;

 public:
  __device__ __forceinline__ SharedRowsFeeder(const Context<C>& context, int warp)
      : Base(context, warp, warp * kRowsOfWarp) {}

  /// Every block of every tile of this CTA.
  __device__ __forceinline__ void run() {
    this->for_each_block([&](const TileWork& work) { feed_queries(work); }, [&](int head) { find_rows(head); },
                         [&] { feed_block(); });
  }

 private:
  using Base::arrive_when_copied, Base::row_of, Base::pieces_of;
  using Base::context_, Base::k_at_, Base::v_at_;
  using Base::kPlan, Base::kRowsOfWarp;
  using typename Base::RowPieces;

  __device__ __forceinline__ void find_rows(int head) {
    shared_ = row_of(shared_tensor(), head);
    if constexpr (C.rule.query_values) {
      behind_ = row_of(context_.params.k, head);
    }
  }

  __device__ __forceinline__ const Rows& shared_tensor() const {
    return C.rule.query_values ? context_.params.v : context_.params.k;
  }

  __device__ __forceinline__ void feed_queries(const TileWork& work) {
    Barriers<C>& barriers = context_.barriers;
    this->template feed_queries_through<kSharedColumns>(
        v_at_, barriers.v_full, barriers.v_empty, work, [&](int first, int stage, uint64_t& full) {
          load_query_piece(context_, work, first, context_.smem + kPlan.v + stage * kPlan.v_bytes, full);
        });
  }

  __device__ __forceinline__ void feed_block() {
    const RowPieces shared = pieces_of(shared_);
    if constexpr (C.head_dim > C.head_dim_v) {
      wait<C>(context_.barriers.k_empty[k_at_.stage], k_at_.parity);
      constexpr int kPanels = panels(C.head_dim - C.head_dim_v);
      const int stage = kPlan.k + k_at_.stage * kPlan.k_bytes;
      if constexpr (C.rule.query_values) {
        this->template copy<kPanels>(context_.params.k, pieces_of(behind_), 0, stage);
      } else {
        this->template copy<kPanels>(context_.params.k, shared, C.head_dim_v, stage);
      }
      arrive_when_copied(context_.barriers.k_full[k_at_.stage]);
      k_at_.advance();
    }
#pragma unroll
    for (int first = 0; first < C.head_dim_v; first += kSharedColumns) {
      wait<C>(context_.barriers.v_empty[v_at_.stage], v_at_.parity);
      const int stage = kPlan.v + v_at_.stage * kPlan.v_bytes;
      this->template copy<panels(kSharedColumns)>(shared_tensor(), shared, first, stage);
      arrive_when_copied(context_.barriers.v_full[v_at_.stage]);
      v_at_.advance();
    }
  }

  // Where the row that this lane finds lies in V and, where that is another tensor, in K.
  unsigned shared_, behind_;
  static_assert(C.values_in_keys);
};

}  // namespace strobe::sm90::forward
