// SPDX-License-Identifier: Apache-2.0
// The bias's gradient: dS, summed over the sequences and heads that share a bias. A CTA holds a tile of it, 128 keys by
// block_m queries, in registers, and walks over those who share it, computing S and dP of the tile again. So sums are
// added in the same order every time, need no atomics, and every element is written once, zeros included.
//
// Warpgroup 0 produces: one thread brings Q, K and LSE, then dO, V and D, and each tile's bias. The two after it hold
// 64 keys each. A CTA computes tile after tile, so that what one needs arrives while the one before is stored.
//
// Read in this order: config.h, what lies where; tile.h, which tiles a CTA has and who shares them; feeder.h, the
// barriers and the producer; BiasGradient below, a warpgroup's tiles; kept_bias.h, the bias of a tile.
#pragma once

#include "kernels/ptx/grid.h"
#include "kernels/sm90/backward/bias_gradient/feeder.h"
#include "kernels/sm90/backward/bias_gradient/kept_bias.h"
#include "kernels/sm90/backward/kept_gradients.h"
#include "kernels/sm90/backward/products.h"
#include "kernels/sm90/backward/score_factors.h"
#include "kernels/sm90/backward/scores.h"

namespace strobe::sm90::backward {

/// S becomes P times the derivative of the score by the bias, which a text may have. Without a softmax, that alone.
template <Config C>
__device__ __forceinline__ void text_factors(const ScoreBlock<C>& block, Scores<C>& s, const RowNumbers<C>& lse_log2,
                                             KeptBias<C>& bias) {
  const auto& captures = score::captures_of<C.rule>(block.params);
  Scores<C> slope;
  score_factors(block, s, lse_log2, bias, [&](int i, const expression::Position& pair, float before) {
    if constexpr (C.rule.text.slope) {
      slope[i] = with_kept<C>(
          block, i, [&](const auto&... kept) { return score::text_slope<C.rule>(captures, pair, kept..., before); });
    }
  });
  if constexpr (C.rule.text.slope) {
#pragma unroll
    for (int i = 0; i < C.block_m / 2; ++i) {
      s[i] = s[i] == 0.0F ? 0.0F : s[i] * slope[i];
    }
  }
}

/// The same of scores that no text changes. `masked`: some of the pairs may be hidden, or of queries that do not exist.
/// Of these P would be NaN where a key is.
template <Config C>
__device__ __forceinline__ void bias_probabilities(const ScoreBlock<C>& block, bool masked, bool has_large_rows,
                                                   Scores<C>& s, const RowNumbers<C>& lse_log2, KeptBias<C>& bias) {
  apply_factor<C>(block, s);
  if constexpr (C.rule.softcap) {
#pragma unroll
    for (int i = 0; i < C.block_m / 2; ++i) {
      s[i] = score::softcapped(block.params.score.softcap, s[i]);
    }
  }
  plain_probabilities<C>(block, masked, has_large_rows, s, lse_log2, bias);
  if (masked) {
    const int left = block.work.q.used - block.query();
#pragma unroll
    for (int i = 0; i < C.block_m / 2; ++i) {
      s[i] = i / 4 * 8 + i % 2 < left ? s[i] : 0.0F;
    }
  }
}

/// sums += P (dP - D), dP without what is dropped.
template <Config C>
__device__ __forceinline__ void add_score_gradients(const ScoreBlock<C>& block, bool masked, const Scores<C>& p,
                                                    const Scores<C>& dp, const RowNumbers<C>& d_sum, Scores<C>& sums) {
  const auto add = [&](int i, float gradient, float d) {
    // Of a pair that is hidden, dP may be anything.
    sums[i] += masked && p[i] == 0.0F ? 0.0F : p[i] * (gradient - d);
  };
  for_each_kept_gradient(block, dp, d_sum, add);
}

/// The tiles of one warpgroup.
template <Config C, int warpgroup>
class BiasGradient {
 public:
  __device__ __forceinline__ BiasGradient(const Params& params, unsigned char* smem, BiasGradientBarriers<C>& barriers)
      : params_(params), smem_(smem), barriers_(barriers) {}

  __device__ __forceinline__ void run(const BiasGradientParams& bias) {
    for_each_bias_tile(params_, bias, [&](const BiasGradientTile& tile) {
      Scores<C> sums;
#pragma unroll
      for (int i = 0; i < C.block_m / 2; ++i) {
        sums[i] = 0.0F;
      }
      sum(tile, sums);
      store(bias, tile, sums);
    });
  }

 private:
  static constexpr BiasGradientSmemPlan kPlan = bias_gradient_smem_plan(C);
  static constexpr int kRowBytes = 4 * C.block_m;

  __device__ __forceinline__ void sum(const BiasGradientTile& tile, Scores<C>& sums) {
    bool any = false;   // whether the producer brings something
    bool kept = false;  // whether the bias is there
    tile.for_each([&](int sequence, int head) {
      const BiasStep<C> own(params_, tile, sequence, head, warpgroup);
      if (!own.visible && !BiasStep<C>(params_, tile, sequence, head, 1 - warpgroup).visible) {
        return;
      }
      any = true;
      if (own.visible) {
        add_step(tile, own, kept, sums);
      } else {
        wait<C>(barriers_.scores_full[scores_.stage], scores_.parity);
        arrive<C>(barriers_.scores_empty[scores_.stage]);
        wait<C>(barriers_.gradients_full[gradients_.stage], gradients_.parity);
        arrive<C>(barriers_.gradients_empty[gradients_.stage]);
      }
      scores_.advance();
      gradients_.advance();
    });
    if constexpr (C.bias_stages > 0) {
      if (any) {
        if (!kept) {
          wait<C>(barriers_.bias_full, bias_parity_);
        }
        __syncwarp();  // all lanes have read it
        arrive<C>(barriers_.bias_empty);
        bias_parity_ ^= 1;
      }
    }
  }

  /// sums += dS of one sequence and head.
  __device__ __forceinline__ void add_step(const BiasGradientTile& tile, const BiasStep<C>& step, bool& kept,
                                           Scores<C>& sums) {
    ScoreBlock<C> block(params_, step.work, step.work.sequence * params_.heads + step.head, step.work.n * block_n(C),
                        tile.m);
    const bool masked = hides_by_text(C.rule) || !step.work.template sees_all<C.rule>(tile.m) ||
                        block.query_first + C.block_m > step.work.q.used;
    const int at = scores_.stage;
    const int dp_at = gradients_.stage;
    if constexpr (C.bias_stages == 0) {  // before the registers are full
      if (!kept) {
        KeptBias<C>(smem_ + kPlan.bias + warpgroup * kept_bias_bytes(C), params_).fetch(params_, tile, warpgroup);
      }
    }
    Scores<C> p;
    Scores<C> dp;
    wait<C>(barriers_.scores_full[at], scores_.parity);
    ptx::wgmma_fence();
    multiply_transposed<C, C.head_dim>(
        p, descriptor_k_major(smem_ + kPlan.k + (at * kKeyWarpgroups + warpgroup) * kPlan.k_bytes),
        descriptor_k_major(smem_ + kPlan.q + at * kPlan.q_bytes));
    ptx::wgmma_commit_group();
    RowNumbers<C> lse_log2;
    load_row_numbers<C>(lse_log2, reinterpret_cast<const float*>(smem_ + kPlan.lse + at * kRowBytes));
    block.find_text(smem_ + kPlan.text + warpgroup * kWarpsPerWarpgroup * text_bytes(C));
    if constexpr (C.dp_ahead) {
      issue_gradients(dp);
      ptx::wgmma_wait_group<1>(p);
    } else {
      ptx::wgmma_wait_group<0>(p);
    }
    __syncwarp();  // all lanes have read LSE
    arrive<C>(barriers_.scores_empty[at]);
    if constexpr (C.bias_stages > 0) {
      if (!kept) {
        wait<C>(barriers_.bias_full, bias_parity_);
      }
    }
    KeptBias<C> bias(smem_ + kPlan.bias + warpgroup * kept_bias_bytes(C), params_);
    if constexpr (takes_scores(C.rule)) {
      text_factors(block, p, lse_log2, bias);
    } else {
      bias_probabilities<C>(block, masked, block.has_large_rows(), p, lse_log2, bias);
    }
    kept = true;
    if constexpr (!C.dp_ahead) {
      ptx::wgmma_fence();
      issue_gradients(dp);
    }
    RowNumbers<C> d_sum;
    load_row_numbers<C>(d_sum, reinterpret_cast<const float*>(smem_ + kPlan.d_sum + dp_at * kRowBytes));
    ptx::wgmma_wait_group<0>(dp);
    __syncwarp();  // all lanes have read D
    arrive<C>(barriers_.gradients_empty[dp_at]);
    add_score_gradients<C>(block, masked, p, dp, d_sum, sums);
  }

  /// dP^T = V dO^T.
  __device__ __forceinline__ void issue_gradients(Scores<C>& dp) {
    const int at = gradients_.stage;
    wait<C>(barriers_.gradients_full[at], gradients_.parity);
    multiply_transposed<C, C.head_dim_v>(
        dp, descriptor_k_major(smem_ + kPlan.v + (at * kKeyWarpgroups + warpgroup) * kPlan.v_bytes),
        descriptor_k_major(smem_ + kPlan.d_o + at * kPlan.do_bytes));
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void store(const BiasGradientParams& bias, const BiasGradientTile& tile,
                                        const Scores<C>& sums) const {
    const int key = (tile.n * kKeyWarpgroups + warpgroup) * block_n(C) + warpgroup_row(0);
    const int query = tile.m * C.block_m + static_cast<int>(2 * (threadIdx.x % 4));
    float* const first =
        bias.data + tile.sequence * bias.batch_stride + tile.head * bias.head_stride + query * bias.row_stride + key;
    const int rows = params_.sequences.seqlen_q - query;
    const int columns = params_.sequences.seqlen_k - key;
#pragma unroll
    for (int i = 0; i < C.block_m / 2; ++i) {
      const int row = i / 4 * 8 + i % 2;
      const int column = 8 * (i / 2 % kRowsPerThread);
      if (row < rows && column < columns) {
        first[row * bias.row_stride + column] = sums[i];
      }
    }
  }

  const Params& params_;
  unsigned char* smem_;
  BiasGradientBarriers<C>& barriers_;
  RingPosition<kPlan.score_stages> scores_;
  RingPosition<kPlan.gradient_stages> gradients_;
  uint32_t bias_parity_ = 0;
};

/// Grid: as many CTAs as run at once, or one for each tile where these are fewer.
template <Config C>
__global__ void __launch_bounds__(kBiasGradientThreads, 1)
    bias_gradient(const __grid_constant__ TensorMaps maps,
                  const __grid_constant__ sequence::KernelParams<C.rule, Params> params,
                  const __grid_constant__ BiasGradientParams bias) {
  static_assert(C.by_roles && C.rule.bias);
  extern __shared__ __align__(1024) unsigned char smem[];
  auto& barriers = *reinterpret_cast<BiasGradientBarriers<C>*>(smem + bias_gradient_smem_plan(C).barriers);
  if (threadIdx.x == 0) {
    barriers.init();
  }
  poison<C.debug>(smem, bias_gradient_smem_plan(C).barriers);
  ptx::griddepcontrol_launch_dependents();
  __syncthreads();
  ptx::griddepcontrol_wait();
  const int warpgroup = __shfl_sync(kFullWarp, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<40>();
    if (threadIdx.x == 0) {
      BiasGradientFeeder<C>(maps, params, smem, barriers).run([&](const auto& visit) {
        for_each_bias_tile(params, bias, visit);
      });
    }
  } else if (warpgroup == 1) {
    ptx::setmaxnreg_inc<232>();
    BiasGradient<C, 0>(params, smem, barriers).run(bias);
  } else {
    ptx::setmaxnreg_inc<232>();
    BiasGradient<C, 1>(params, smem, barriers).run(bias);
  }
}

}  // namespace strobe::sm90::backward
