// SPDX-License-Identifier: Apache-2.0
// One block of keys: the warps hold dK and dV in registers and walk over the blocks of queries.
//
// One step:
//   1. S^T = K Q^T and dP^T = V dO^T; P = exp2(S - LSE); dS = P (dP - D), part by part
//   2. dV += P^T dO, dK += dS^T Q: P and dS are operands where they are, or pass between the warps that share keys
//   3. dQ = dS K by the whole CTA, added to sums in global memory
#pragma once

#include "kernels/sm80/backward/barriers.h"
#include "kernels/sm80/backward/epilogue.h"
#include "kernels/sm80/backward/loader.h"
#include "kernels/sm80/backward/products.h"
#include "kernels/sm80/backward/query_gradient.h"

namespace strobe::sm80::backward {

template <Config C>
class TileBackward {
 public:
  __device__ __forceinline__ TileBackward(const Params& params, const Work& work)
      : params_(params),
        work_(work),
        warp_(warp_of_cta()),
        smem_(shared_address(shared_memory())),
        barriers_(smem_),
        has_large_rows_(score::has_large_rows<C.rule>(params, work.sequence, work.head_kv * params.heads_per_kv,
                                                      params.heads_per_kv)) {}

  /// `step`: the first, which exists.
  __device__ __forceinline__ void run(Steps<C>& steps, Step step) {
    KeyGradient dk = {};
    ValueGradient dv = {};
    start_keys<C>(params_, work_, work_.sequence, work_.head_kv, work_.n, smem_);
    start(step, 0);
    int number = 0;  // of the step
    bool goes_on;
    do {
      const Step next = steps.after(step);
      goes_on = steps.has(next);
      const uint32_t parity = number & 1;
      stage_ = C.stages == 1 ? 0 : number & 1;
      barriers_.wait(barriers_.full(stage_), number / C.stages & 1);
      const auto before_stores = [&] {
        if (number > 0) {
          barriers_.wait(barriers_.free(), parity ^ 1);
        }
        if (C.stages > 1 && goes_on) {
          start(next, stage_ ^ 1);
        }
      };
      if (computes_scores(C, column_warp())) {
        compute_parts(dk, dv, step, before_stores);
      } else {
        before_stores();
        arrive_ready_with_stages();
      }
      if constexpr (C.column_warps > 1) {
        ptx::barrier_cta_sync(1 + warp_ / C.column_warps, C.column_warps * kWarpSize);
        add_stored<DoTile<C>>(dv, kPlan.p, output_gradients());
        add_stored<QTile<C>>(dk, kPlan.ds, queries());
      }
      if constexpr (C.stages == 1) {
        barriers_.arrive(barriers_.ready());
      }
      barriers_.wait(barriers_.ready(), parity);
      if (C.stages == 1 && goes_on) {
        start(next, 0);
      }
      add_query_gradients(step);
      ++number;
      step = next;
    } while (goes_on);
    __syncthreads();
    store_gradients<C>(params_, work_, dk, dv);
  }

 private:
  using KeyGradient = float[fragments(C)][key_columns(C) / 2];
  using ValueGradient = float[fragments(C)][value_columns(C) / 2];
  static constexpr SmemPlan kPlan = smem_plan(C);
  static constexpr int kParts = warp_parts(C);

  __device__ __forceinline__ int query_head(const Step& step) const {
    return work_.head_kv * params_.heads_per_kv + step.head;
  }
  /// The warp's first key in the tile, and its number among those that share the keys.
  __device__ __forceinline__ int key_row() const { return warp_ / C.column_warps * C.rows_per_warp; }
  __device__ __forceinline__ int column_warp() const { return C.column_warps == 1 ? 0 : warp_ % C.column_warps; }

  /// Starts copying what belongs to a step.
  __device__ __forceinline__ void start(const Step& step, int stage) const {
    start_queries<C>(params_, work_, work_.sequence, query_head(step), step.m, smem_, stage);
    start_rows<C>(params_, work_.sequence, query_head(step), step.m, smem_, stage);
    ptx::cp_async_mbarrier_arrive(barriers_.full(stage));
  }

  __device__ __forceinline__ uint32_t queries() const { return smem_ + kPlan.q + stage_ * kPlan.q_bytes; }
  __device__ __forceinline__ uint32_t output_gradients() const { return smem_ + kPlan.d_o + stage_ * kPlan.do_bytes; }
  __device__ __forceinline__ const float* row_numbers(int offset) const {
    return reinterpret_cast<const float*>(shared_memory() + offset + stage_ * kPlan.row_bytes);
  }

  /// With several stages a warp's dS is all that others wait for.
  __device__ __forceinline__ void arrive_ready_with_stages() const {
    if constexpr (C.stages > 1) {
      barriers_.arrive(barriers_.ready());
    }
  }

  /// dQ of a step, slice by slice, when all dS are stored. After the last product the warp is done with the step.
  __device__ __forceinline__ void add_query_gradients(const Step& step) const {
#pragma unroll 1
    for (QueryPart<C> part; part.slice < C.query_slices; ++part.slice) {
      typename QueryPart<C>::Sums dq = {};
      multiply_keys<C>(dq, part, smem_ + kPlan.ds, smem_ + kPlan.k);
      if (part.slice == C.query_slices - 1) {
        barriers_.arrive(barriers_.free());
      }
      add_query_gradient<C>(params_, work_, query_head(step), step.m, part, dq);
    }
  }

  /// `before_stores()`: called once, when the first dS has been computed.
  template <typename BeforeStores>
  __device__ __forceinline__ void compute_parts(KeyGradient& dk, ValueGradient& dv, const Step& step,
                                                const BeforeStores& before_stores) {
#pragma unroll 1  // else ptxas mixes parts, and runs out of registers
    for (int part = 0; part < kParts; ++part) {
      const int row = column_warp() * warp_queries(C) + part * C.part_m;
      Operand<C> p[fragments(C)], ds[fragments(C)];
      compute_part(step, row, p, ds);
      if (part == 0) {
        before_stores();
      }
#pragma unroll
      for (int f = 0; f < fragments(C); ++f) {
        const int key = key_row() + f * kFragmentRows;
        store_operand(kPlan.ds, key, row, ds[f]);
        if constexpr (C.column_warps > 1) {
          store_operand(kPlan.p, key, row, p[f]);
        }
      }
      if (part == kParts - 1) {
        arrive_ready_with_stages();
      }
      if constexpr (C.column_warps == 1) {
        add_operands<DoTile<C>>(dv, p, output_gradients(), row);
        add_operands<QTile<C>>(dk, ds, queries(), row);
      }
    }
  }

  /// Keys from `key` on and queries from `row` on of a tile of scores.
  __device__ __forceinline__ static void store_operand(int tile, int key, int row, const Operand<C>& x) {
    if constexpr (has_query_rows(C)) {
      store_query_scores<ScoreTile<C>>(shared_memory() + tile, key, row, x);
    } else {
      store_scores<ScoreTile<C>>(shared_memory() + tile, key, row / kStep, x);
    }
  }

  /// P and dS of the queries from `row` of the step on.
  __device__ __forceinline__ void compute_part(const Step& step, int row, Operand<C> (&p)[fragments(C)],
                                               Operand<C> (&ds)[fragments(C)]) const {
    const ScoreBlock<C> first{params_,
                              work_,
                              query_head(step),
                              work_.n * block_n(C) + key_row(),
                              step.m * C.block_m + row,
                              has_large_rows_,
                              is_shown<C>(params_, work_, query_head(step), step.m * C.block_m, work_.n * block_n(C))};
    PartBias<C> bias[fragments(C)];
#pragma unroll
    for (int f = 0; f < fragments(C); ++f) {
      ScoreBlock<C> block = first;
      block.key_first += f * kFragmentRows;
      bias[f].fetch(block);
    }
    WarpScores<C> s, dp, slope;
    multiply_rows<C, KTile<C>, QTile<C>, C.head_dim>(s, smem_ + kPlan.k, key_row(), queries(), row);
    multiply_rows<C, VTile<C>, DoTile<C>, C.head_dim_v>(dp, smem_ + kPlan.v, key_row(), output_gradients(), row);
    if (work_.template sees_all<C.rule>(step.m)) {
      to_probabilities<false>(first, s, slope, row_numbers(kPlan.lse) + row, bias);
    } else {
      to_probabilities<true>(first, s, slope, row_numbers(kPlan.lse) + row, bias);
    }
#pragma unroll
    for (int f = 0; f < fragments(C); ++f) {
      ScoreBlock<C> block = first;
      block.key_first += f * kFragmentRows;
      to_operands(block, s[f], slope[f], dp[f], row_numbers(kPlan.d_sum) + row, p[f], ds[f]);
    }
  }

  /// Adds x^T times the rows from `row` on of dO or Q, whose tile is `b`.
  template <typename Tile, int registers>
  __device__ __forceinline__ void add_operands(float (&sum)[fragments(C)][registers],
                                               const Operand<C> (&x)[fragments(C)], uint32_t b, int row) const {
    if constexpr (C.rule.element == Element::fp32) {
      add_split_operands<Tile>(sum, x, b, row);
    } else {
      add_packed_operands<Tile>(sum, x, b, row);
    }
  }

  template <typename Tile, int registers>
  __device__ __forceinline__ void add_split_operands(float (&sum)[fragments(C)][registers],
                                                     const Operand<C> (&x)[fragments(C)], uint32_t b, int row) const {
    const uint32_t first = split_v_operand<Tile>(b) + row * Tile::kRowBytes;
#pragma unroll
    for (int step = 0; step < C.part_m / kStep; ++step) {
      SplitOperand a[fragments(C)];
#pragma unroll
      for (int f = 0; f < fragments(C); ++f) {
        to_operand(a[f], x[f], step);
      }
      split_product_step<Tile::kRowBytes, Tile::kPanelBytes>(sum, a, first + step * kStep * Tile::kRowBytes);
    }
  }

  template <typename Tile, int registers>
  __device__ __forceinline__ void add_packed_operands(float (&sum)[fragments(C)][registers],
                                                      const Operand<C> (&x)[fragments(C)], uint32_t b, int row) const {
    const uint32_t first = v_operand<Tile>(b) + row * Tile::kRowBytes;
#pragma unroll
    for (int step = 0; step < C.part_m / kStep; ++step) {
      uint32_t a[fragments(C)][4];
#pragma unroll
      for (int i = 0; i < 4 * fragments(C); ++i) {
        a[i / 4][i % 4] = x[i / 4][step][i % 4];
      }
      product_step<C.rule.element, Tile::kRowBytes>(sum, a, [&](int j) { return Tile::pair_after(first, j); }, step);
    }
  }

  /// Adds what the warps that share these keys have stored, x^T, times dO or Q, in this warp's columns. `x`: the tile
  /// of scores.
  template <typename Tile, int registers>
  __device__ __forceinline__ void add_stored(float (&sum)[fragments(C)][registers], int x, uint32_t b) const {
    if constexpr (has_query_rows(C)) {
      add_stored_floats<Tile>(sum, x, b);
    } else {
      add_stored_pairs<Tile>(sum, x, b);
    }
  }

  template <typename Tile, int registers>
  __device__ __forceinline__ void add_stored_floats(float (&sum)[fragments(C)][registers], int x, uint32_t b) const {
    constexpr int kPanelColumns = Tile::kPanelColumns / 2;
    const QueryScores<ScoreTile<C>> scores(shared_memory() + x, key_row());
    const uint32_t first =
        split_v_operand<Tile>(b) + column_warp() * (registers * 2 / kPanelColumns) * Tile::kPanelBytes;
#pragma unroll 1  // else ptxas mixes steps, and runs out of registers
    for (int step = 0; step < C.block_m / kStep; ++step) {
      float of_step[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        of_step[i] = scores.at(step * kStep, i);
      }
      SplitOperand a[fragments(C)];
      to_operand(a[0], of_step, 0);
      split_product_step<Tile::kRowBytes, Tile::kPanelBytes>(sum, a, first + step * kStep * Tile::kRowBytes);
    }
  }

  template <typename Tile, int registers>
  __device__ __forceinline__ void add_stored_pairs(float (&sum)[fragments(C)][registers], int x, uint32_t b) const {
    constexpr int kPairs = registers * 2 / kStep;
    const uint32_t first = a_operand<ScoreTile<C>>(smem_ + x, key_row());
    const TileColumns<Tile, kPairs> columns(v_operand<Tile>(b), column_warp() * kPairs);
#pragma unroll
    for (int step = 0; step < C.block_m / kStep; ++step) {
      uint32_t a[fragments(C)][4];
#pragma unroll
      for (int f = 0; f < fragments(C); ++f) {
        ptx::ldmatrix_x4(a[f], ScoreTile<C>::pair_after(first, step) + f * kFragmentRows * ScoreTile<C>::kRowBytes);
      }
      product_step<C.rule.element, Tile::kRowBytes>(sum, a, columns, step);
    }
  }

  const Params& params_;
  const Work& work_;
  const int warp_;
  const uint32_t smem_;
  const Barriers<C> barriers_;
  const bool has_large_rows_;
  int stage_ = 0;
};

}  // namespace strobe::sm80::backward
