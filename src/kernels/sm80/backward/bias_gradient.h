// SPDX-License-Identifier: Apache-2.0
// The bias's gradient: dS, summed over the sequences and heads that share a bias. A CTA holds a tile of it, a block of
// keys by a block of queries, in registers, and walks over those who share it, computing S and dP of the tile again. So
// sums are added in the same order every time, need no atomics, and every element is written once, zeros included.
#pragma once

#include "kernels/ptx/grid.h"
#include "kernels/score/bias_gradient.h"
#include "kernels/score/modifiers/block_mask.h"
#include "kernels/sm80/backward/loader.h"
#include "kernels/sm80/backward/products.h"

namespace strobe::sm80::backward {

using score::BiasGradientTile;

template <Config C>
class BiasGradient {
 public:
  __device__ __forceinline__ BiasGradient(const Params& params, const BiasGradientTile& tile)
      : params_(params), tile_(tile), smem_(shared_address(shared_memory())) {}

  __device__ __forceinline__ void run(const BiasGradientParams& bias) {
    tile_.for_each([&](int sequence, int head) { add(sequence, head); });
    store(bias);
  }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);
  static constexpr int kParts = warp_parts(C);

  __device__ __forceinline__ static int key_row() { return warp_of_cta() / C.column_warps * C.rows_per_warp; }
  __device__ __forceinline__ static int column_warp() { return warp_of_cta() % C.column_warps; }
  __device__ __forceinline__ static int query_row(int part) {
    return column_warp() * warp_queries(C) + part * C.part_m;
  }

  /// What the pairs of one sequence and head add.
  __device__ __forceinline__ void add(int sequence, int head) {
    Work work{score::sequence_of<C.rule>(params_, sequence)};
    work.sequence = sequence;
    work.head_kv = head / params_.heads_per_kv;
    work.n = tile_.n;
    score::find_query_blocks<C.rule, C.block_m, block_n(C)>(params_, work);
    const bool visible =
        tile_.m >= work.m_begin && tile_.m < work.m_end &&
        score::sees_block<C.rule>(params_.blocks, sequence, head, tile_.m * C.block_m, work.n * block_n(C));
    if (!visible) {
      return;
    }
    __syncthreads();  // nobody reads the tiles before any more
    start_keys<C>(params_, work, sequence, work.head_kv, work.n, smem_);
    start_queries<C>(params_, work, sequence, head, tile_.m, smem_, 0);
    start_rows<C>(params_, sequence, head, tile_.m, smem_, 0);
    ptx::cp_async_wait_all();
    __syncthreads();
    if (!computes_scores(C, column_warp())) {
      return;
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      __syncwarp();  // else ptxas mixes parts, and runs out of registers
      add_part(work, head, query_row(part), sums_[part]);
    }
  }

  __device__ __forceinline__ void add_part(const Work& work, int head, int row, WarpScores<C>& sums) const {
    const ScoreBlock<C> first{params_,
                              work,
                              head,
                              work.n * block_n(C) + key_row(),
                              tile_.m * C.block_m + row,
                              score::has_large_rows<C.rule>(params_, work.sequence, head, 1),
                              is_shown<C>(params_, work, head, tile_.m * C.block_m, work.n * block_n(C))};
    PartBias<C> bias[fragments(C)];
    WarpScores<C> s, dp;
#pragma unroll
    for (int f = 0; f < fragments(C); ++f) {
      ScoreBlock<C> block = first;
      block.key_first += f * kFragmentRows;
      bias[f].fetch(block);
    }
    multiply_rows<C, KTile<C>, QTile<C>, C.head_dim>(s, smem_ + kPlan.k, key_row(), smem_ + kPlan.q, row);
    multiply_rows<C, VTile<C>, DoTile<C>, C.head_dim_v>(dp, smem_ + kPlan.v, key_row(), smem_ + kPlan.d_o, row);
    const float keep_factor = C.rule.dropout ? params_.score.dropout.keep_factor : 1.0F;
    const int left = work.q.used - first.query();
#pragma unroll
    for (int f = 0; f < fragments(C); ++f) {
      ScoreBlock<C> block = first;
      block.key_first += f * kFragmentRows;
      to_bias_factors(block, s[f], row_numbers(kPlan.lse) + row, bias[f]);
      for_each_gradient<C>(block, row_numbers(kPlan.d_sum) + row, [&](int i, const float2& d, unsigned dropped) {
        const float2 gradient = score::without_dropped(&dp[f][i], dropped);
        const int column = i / 4 * 8;
        sums[f][i] += gradient_of(s[f][i], column < left, (gradient.x - d.x) * keep_factor);
        sums[f][i + 1] += gradient_of(s[f][i + 1], column + 1 < left, (gradient.y - d.y) * keep_factor);
      });
    }
  }

  /// Of a pair that is hidden or does not exist, `gradient` may be anything.
  __device__ __forceinline__ static float gradient_of(float p, bool exists, float gradient) {
    return p == 0.0F || !exists ? 0.0F : p * gradient;
  }

  __device__ __forceinline__ const float* row_numbers(int offset) const {
    return reinterpret_cast<const float*>(shared_memory() + offset);
  }

  __device__ __forceinline__ void store(const BiasGradientParams& bias) const {
    if (!computes_scores(C, column_warp())) {
      return;
    }
    float* const plane = bias.data + tile_.sequence * bias.batch_stride + tile_.head * bias.head_stride;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int query_first = tile_.m * C.block_m + query_row(part) + score::fragment_column();
#pragma unroll
      for (int f = 0; f < fragments(C); ++f) {
        const int key_first = tile_.n * block_n(C) + key_row() + f * kFragmentRows + score::fragment_row(0);
#pragma unroll
        for (int i = 0; i < C.part_m / 2; ++i) {
          const int query = query_first + i / 4 * 8 + i % 2;
          const int key = key_first + 8 * (i / 2 % kRowsPerThread);
          if (query < params_.sequences.seqlen_q && key < params_.sequences.seqlen_k) {
            plane[query * bias.row_stride + key] = sums_[part][f][i];
          }
        }
      }
    }
  }

  const Params& params_;
  const BiasGradientTile& tile_;
  const uint32_t smem_;
  WarpScores<C> sums_[kParts] = {};
};

/// Grid: bias.tiles.
template <Config C>
__global__ void __launch_bounds__(threads_per_block(C), 1)
    bias_gradient(const __grid_constant__ sequence::KernelParams<C.rule, Params> params,
                  const __grid_constant__ BiasGradientParams bias) {
  static_assert(C.rule.bias);
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const auto tile = BiasGradientTile::of(params, bias, blockIdx.x, params.n_blocks);
  BiasGradient<C>(params, tile).run(bias);
}

}  // namespace strobe::sm80::backward
