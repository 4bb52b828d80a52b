// SPDX-License-Identifier: Apache-2.0
// The gradients of captures: S and dP of every block once more, and what its pairs add to what a text read
// (score/capture_gradients.h). A CTA has a block of keys and a block of queries of one sequence and head.
#pragma once

#include "kernels/ptx/grid.h"
#include "kernels/score/bias_gradient.h"
#include "kernels/score/capture_gradients.h"
#include "kernels/score/modifiers/block_mask.h"
#include "kernels/sm80/backward/loader.h"
#include "kernels/sm80/backward/products.h"

namespace strobe::sm80::backward {

using score::BiasGradientTile;

template <Config C>
class CaptureGradient {
 public:
  using Gradients = score::CaptureGradients<C.part_m / 2, C.ordered>;

  __device__ __forceinline__ CaptureGradient(const Params& params, const expression::Captures& gradients,
                                             const BiasGradientTile& tile)
      : params_(params), gradients_(gradients), tile_(tile), smem_(shared_address(shared_memory())) {}

  __device__ __forceinline__ void run() {
    Work work{score::sequence_of<C.rule>(params_, tile_.sequence)};
    work.sequence = tile_.sequence;
    work.head_kv = tile_.head / params_.heads_per_kv;
    work.n = tile_.n;
    score::find_query_blocks<C.rule, C.block_m, block_n(C)>(params_, work);
    const bool visible =
        tile_.m >= work.m_begin && tile_.m < work.m_end &&
        score::sees_block<C.rule>(params_.blocks, tile_.sequence, tile_.head, tile_.m * C.block_m, work.n * block_n(C));
    if (!visible) {
      return;
    }
    start_keys<C>(params_, work, work.sequence, work.head_kv, work.n, smem_);
    start_queries<C>(params_, work, work.sequence, tile_.head, tile_.m, smem_, 0);
    start_rows<C>(params_, work.sequence, tile_.head, tile_.m, smem_, 0);
    ptx::cp_async_wait_all();
    __syncthreads();
    const int column_warp = warp_of_cta() % C.column_warps;
    if (!computes_scores(C, column_warp)) {
      return;
    }
#pragma unroll 1
    for (int part = 0; part < warp_parts(C); ++part) {
      add_part(work, column_warp * warp_queries(C) + part * C.part_m);
    }
  }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);

  __device__ __forceinline__ void add_part(const Work& work, int row) const {
    const int key_row = warp_of_cta() / C.column_warps * C.rows_per_warp;
    const ScoreBlock<C> first{params_,
                              work,
                              tile_.head,
                              work.n * block_n(C) + key_row,
                              tile_.m * C.block_m + row,
                              score::has_large_rows<C.rule>(params_, work.sequence, tile_.head, 1),
                              is_shown<C>(params_, work, tile_.head, tile_.m * C.block_m, work.n * block_n(C))};
    WarpScores<C> s, dp;
    multiply_rows<C, KTile<C>, QTile<C>, C.head_dim>(s, smem_ + kPlan.k, key_row, smem_ + kPlan.q, row);
    multiply_rows<C, VTile<C>, DoTile<C>, C.head_dim_v>(dp, smem_ + kPlan.v, key_row, smem_ + kPlan.d_o, row);
#pragma unroll
    for (int f = 0; f < fragments(C); ++f) {
      ScoreBlock<C> block = first;
      block.key_first += f * kFragmentRows;
      PartBias<C> bias;
      bias.fetch(block);
      Scores<C> before, slope;
      if constexpr (C.rule.normalized) {
        text_probabilities<true, true>(block, s[f], slope, row_numbers(kPlan.lse) + row, bias, before);
      } else {
        for_each_unnormalized<true>(block, s[f], bias,
                                    [&](int i, bool shown, const expression::Position&, float, float given, float) {
                                      before[i] = given;
                                      s[f][i] = shown ? 1.0F : 0.0F;
                                    });
      }
      const int left = work.q.used - block.query();
      const float keep_factor = C.rule.dropout ? params_.score.dropout.keep_factor : 1.0F;
      for_each_gradient<C>(block, row_numbers(kPlan.d_sum) + row, [&](int i, const float2& d, unsigned dropped) {
        const float2 gradient = score::without_dropped(&dp[f][i], dropped);
        const int column = i / 4 * 8;
        s[f][i] = gradient_of(s[f][i], column < left, (gradient.x - d.x) * keep_factor);
        s[f][i + 1] = gradient_of(s[f][i + 1], column + 1 < left, (gradient.y - d.y) * keep_factor);
      });
      const expression::Position pair = first_pair(block);
      Gradients sums(sequence::captures_of<C.rule>(params_), gradients_, diagonals());
      sums.add(pair, s[f], before);
      sums.finish(pair);
    }
  }

  /// Of a pair that is hidden or does not exist, `gradient` may be anything.
  __device__ __forceinline__ static float gradient_of(float p, bool exists, float gradient) {
    return p == 0.0F || !exists ? 0.0F : p * gradient;
  }

  __device__ __forceinline__ const float* row_numbers(int offset) const {
    return reinterpret_cast<const float*>(shared_memory() + offset);
  }

  /// This warp's, behind what a pass has.
  __device__ __forceinline__ static float* diagonals() {
    return reinterpret_cast<float*>(shared_memory() + kPlan.total_bytes) +
           warp_of_cta() * score::diagonal_floats(C.part_m);
  }

  const Params& params_;
  const expression::Captures& gradients_;
  const BiasGradientTile& tile_;
  const uint32_t smem_;
};

/// Grid: tiles.tiles, every sequence and head having its own.
template <Config C>
__global__ void __launch_bounds__(threads_per_block(C), 1)
    capture_gradient(const __grid_constant__ sequence::KernelParams<C.rule, Params> params,
                     const __grid_constant__ BiasGradientParams tiles,
                     const __grid_constant__ expression::Captures gradients) {
  static_assert(C.rule.text.score && C.captures);
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const auto tile = BiasGradientTile::of(params, tiles, blockIdx.x, params.n_blocks);
  CaptureGradient<C>(params, gradients, tile).run();
}

}  // namespace strobe::sm80::backward
