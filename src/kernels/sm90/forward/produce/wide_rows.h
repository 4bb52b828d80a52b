// SPDX-License-Identifier: Apache-2.0
// Wide loops: K and V out of pages row by row, by cp.async.
#pragma once

#include "kernels/sm90/forward/produce/wide_row_feeder.h"

namespace strobe::sm90::forward {

/// One of kTensorRowWarps warps that bring Q and K.
template <Config C>
class WideKeyRowsFeeder : private CopiedRowsFeeder<C, C.block_n / kTensorRowWarps> {
  using Base = CopiedRowsFeeder<C, C.block_n / kTensorRowWarps>;

 public:
  __device__ __forceinline__ WideKeyRowsFeeder(const Context<C>& context, int warp)
      : Base(context, warp, warp * kRowsOfWarp) {}

  /// Every block of every tile of this CTA.
  __device__ __forceinline__ void run() {
    this->for_each_block([&](const TileWork& work) { feed_queries(work); }, [&](int head) { find_rows(head); },
                         [&] { feed_block(); });
  }

 private:
  using Base::arrive_when_copied, Base::row_of, Base::pieces_of;
  using Base::context_, Base::k_at_;
  using Base::kPlan, Base::kRowsOfWarp;
  using typename Base::RowPieces;

  __device__ __forceinline__ void find_rows(int head) {
    key_ = row_of(context_.params.k, head);
    if constexpr (C.rule.query_values) {
      value_ = row_of(context_.params.v, head);
    }
  }

  __device__ __forceinline__ void feed_queries(const TileWork& work) {
    Barriers<C>& barriers = context_.barriers;
    this->template feed_queries_through<kPanelColumns>(
        k_at_, barriers.k_full, barriers.k_empty, work, [&](int column, int stage, uint64_t& full) {
          load_query_panel(context_, work, column, context_.smem + kPlan.k + stage * kPlan.k_bytes, full);
        });
  }

  /// With a second query V's columns come first, of whole panels.
  __device__ __forceinline__ void feed_block() {
    const Params& params = context_.params;
    const int own = first_own_column(C, params);
    if constexpr (C.rule.query_values) {
      feed_columns<false>(params.v, value_, own, own);
    }
    feed_columns<true>(params.k, key_, C.head_dim - own, params.head_dim - own);
  }

  /// The first `columns` of a tensor's rows, of which those before `existing` are there.
  template <bool bounded>
  __device__ __forceinline__ void feed_columns(const Rows& tensor, unsigned row, int columns, int existing) {
    const RowPieces rows = pieces_of(row);
#pragma unroll 1
    for (int column = 0; column < columns; column += kPanelColumns) {
      wait<C>(context_.barriers.k_empty[k_at_.stage], k_at_.parity);
      this->template copy<1, bounded>(tensor, rows, column, kPlan.k + k_at_.stage * kPlan.k_bytes, existing);
      arrive_when_copied(context_.barriers.k_full[k_at_.stage]);
      k_at_.advance();
    }
  }

  unsigned key_, value_;  // where the row that this lane finds lies in K, and with a second query in V
};

/// One of as many that bring V.
template <Config C>
class WideValueRowsFeeder : private CopiedRowsFeeder<C, C.block_n / kTensorRowWarps> {
  using Base = CopiedRowsFeeder<C, C.block_n / kTensorRowWarps>;

 public:
  __device__ __forceinline__ WideValueRowsFeeder(const Context<C>& context, int warp)
      : Base(context, warp, warp * kRowsOfWarp) {}

  __device__ __forceinline__ void run() {
    this->for_each_block([](const TileWork&) {}, [&](int head) { value_ = row_of(context_.params.v, head); },
                         [&] { feed_block(); });
  }

 private:
  using Base::arrive_when_copied, Base::row_of, Base::pieces_of;
  using Base::context_, Base::v_at_;
  using Base::kPlan, Base::kRowsOfWarp, Base::kPanelBytes;
  using typename Base::RowPieces;

  /// The columns of one output warpgroup after another.
  __device__ __forceinline__ void feed_block() {
    const Params& params = context_.params;
    const RowPieces rows = pieces_of(value_);
#pragma unroll 1
    for (int first = 0; first < C.head_dim_v; first += output_columns(C)) {
      wait<C>(context_.barriers.v_empty[v_at_.stage], v_at_.parity);
      const int stage = kPlan.v + v_at_.stage * kPlan.v_bytes;
#pragma unroll 1
      for (int panel = 0; panel < panels(output_columns(C)); ++panel) {
        this->template copy<1, true>(params.v, rows, first + panel * kPanelColumns, stage + panel * kPanelBytes,
                                     params.head_dim_v);
      }
      arrive_when_copied(context_.barriers.v_full[v_at_.stage]);
      v_at_.advance();
    }
  }

  unsigned value_;  // where the row that this lane finds lies
};

}  // namespace strobe::sm90::forward
