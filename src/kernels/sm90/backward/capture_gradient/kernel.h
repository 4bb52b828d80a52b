// SPDX-License-Identifier: Apache-2.0
// The gradients of captures: S and dP of every block once more, and what its pairs add to what a text read
// (score/capture_gradients.h), in any order. Warpgroup 0 produces as for the bias's gradient, where every sequence and
// head has tiles of its own; the two after it hold 64 keys each. A CTA's tiles follow diagonals, so that what a thread
// sums of a diagonal or a head stays in its registers from one tile to the next.
#pragma once

#include "kernels/ptx/grid.h"
#include "kernels/score/capture_gradients.h"
#include "kernels/sm90/backward/bias_gradient/feeder.h"
#include "kernels/sm90/backward/capture_gradient/walk.h"
#include "kernels/sm90/backward/products.h"
#include "kernels/sm90/backward/scores.h"

namespace strobe::sm90::backward {

/// The blocks of one warpgroup.
template <Config C, int warpgroup>
class CaptureGradient {
 public:
  __device__ __forceinline__ CaptureGradient(const Params& params, const expression::Captures& gradients,
                                             unsigned char* smem, BiasGradientBarriers<C>& barriers)
      : params_(params),
        smem_(smem),
        barriers_(barriers),
        sums_(sequence::captures_of<C.rule>(params), gradients, sums_memory()) {}

  __device__ __forceinline__ void run(const BiasGradientParams& walks) {
    for_each_walk(params_, walks, [&](const BiasGradientTile& tile) { add_tile(tile); }, [&] { finish_walk(); });
  }

 private:
  static constexpr BiasGradientSmemPlan kPlan = bias_gradient_smem_plan(C);
  static constexpr int kRowBytes = 4 * C.block_m;

  __device__ __forceinline__ float* sums_memory() const {
    return reinterpret_cast<float*>(smem_ + kPlan.bias + warpgroup * kept_bytes(C)) +
           warp_of_warpgroup() * score::diagonal_floats(C.block_m);
  }

  __device__ __forceinline__ void add_tile(const BiasGradientTile& tile) {
    const BiasStep<C> own(params_, tile, tile.sequence, tile.head, warpgroup);
    if (!own.visible && !BiasStep<C>(params_, tile, tile.sequence, tile.head, 1 - warpgroup).visible) {
      return;
    }
    if (own.visible) {
      add_step(tile, own);
    } else {
      wait<C>(barriers_.scores_full[scores_.stage], scores_.parity);
      arrive<C>(barriers_.scores_empty[scores_.stage]);
      wait<C>(barriers_.gradients_full[gradients_at_.stage], gradients_at_.parity);
      arrive<C>(barriers_.gradients_empty[gradients_at_.stage]);
    }
    scores_.advance();
    gradients_at_.advance();
  }

  __device__ __forceinline__ void finish_walk() {
    if (has_sums_) {
      sums_.finish(first_);
    }
    has_sums_ = false;
  }

  __device__ __forceinline__ void add_step(const BiasGradientTile& tile, const BiasStep<C>& step) {
    ScoreBlock<C> block(params_, step.work, step.work.sequence * params_.heads + step.head, step.work.n * block_n(C),
                        tile.m);
    StepBias<C> bias;
    bias.fetch(block);
    Scores<C> p;
    const int at = scores_.stage;
    wait<C>(barriers_.scores_full[at], scores_.parity);
    ptx::wgmma_fence();
    multiply_transposed<C, C.head_dim>(
        p, descriptor_k_major(smem_ + kPlan.k + (at * kKeyWarpgroups + warpgroup) * kPlan.k_bytes),
        descriptor_k_major(smem_ + kPlan.q + at * kPlan.q_bytes));
    ptx::wgmma_commit_group();
    RowNumbers<C> lse_log2;
    load_row_numbers<C>(lse_log2, reinterpret_cast<const float*>(smem_ + kPlan.lse + at * kRowBytes));
    block.find_text(smem_ + kPlan.text + warpgroup * kWarpsPerWarpgroup * text_bytes(C), !has_sums_);
    ptx::wgmma_wait_group<0>(p);
    __syncwarp();  // all lanes have read LSE
    arrive<C>(barriers_.scores_empty[at]);

    Scores<C> before;
    to_probabilities(block, p, before, lse_log2, bias);

    Scores<C> dp;
    const int dp_at = gradients_at_.stage;
    wait<C>(barriers_.gradients_full[dp_at], gradients_at_.parity);
    ptx::wgmma_fence();
    multiply_transposed<C, C.head_dim_v>(
        dp, descriptor_k_major(smem_ + kPlan.v + (dp_at * kKeyWarpgroups + warpgroup) * kPlan.v_bytes),
        descriptor_k_major(smem_ + kPlan.d_o + dp_at * kPlan.do_bytes));
    ptx::wgmma_commit_group();
    RowNumbers<C> d_sum;
    load_row_numbers<C>(d_sum, reinterpret_cast<const float*>(smem_ + kPlan.d_sum + dp_at * kRowBytes));
    ptx::wgmma_wait_group<0>(dp);
    __syncwarp();  // all lanes have read D
    arrive<C>(barriers_.gradients_empty[dp_at]);
    to_score_gradients(p, dp, d_sum);

    first_ = first_pair(block);
    has_sums_ = true;
    sums_.add(first_, p, before);
  }

  /// S becomes what dP - D is multiplied with: P, or 1 where the scores are P; 0 of pairs that are hidden or do not
  /// exist. `before`: scores as the text reads them.
  __device__ __forceinline__ void to_probabilities(const ScoreBlock<C>& block, Scores<C>& s, Scores<C>& before,
                                                   const RowNumbers<C>& lse_log2, StepBias<C>& bias) const {
    const expression::Captures& captures = sequence::captures_of<C.rule>(params_);
    apply_factor<C>(block, s);
    if constexpr (!C.rule.normalized) {
      unnormalized_scores<C>(block, true, s, bias,
                             [&](int i, const expression::Position&, float, float score) { before[i] = score; });
#pragma unroll
      for (float& x : s) {
        x = x == kMinusInfinity ? 0.0F : 1.0F;
      }
      return;
    }
    for_each_score_before_text<C>(block, s, bias, [&](int i, const expression::Position& pair, float, float score) {
      before[i] = score;
      s[i] = with_kept<C>(
          block, i, [&](const auto&... kept) { return score::text_score<C.rule>(captures, pair, kept..., score); });
    });
    if ((C.rule.text.mask && !block.shown) || !block.work.template sees_all<C.rule>(block.query_first / C.block_m)) {
      hide<C>(block, s);
    }
    const bool large = block.has_large_rows();
    const auto* row_max = reinterpret_cast<const float2*>(block.of_query(params_.row_max));
    const int left = block.work.q.used - block.query();
#pragma unroll
    for (int j = 0; j < C.block_m / 8; ++j) {
      const float2 lse = row_numbers<C>(lse_log2, j);
      const float2 highest = large ? row_max[4 * j] : float2{};
#pragma unroll
      for (int i = 4 * j; i < 4 * j + 4; ++i) {
        const float exponent = score::large_exponent(s[i], kLog2E, i % 2 == 0 ? highest.x : highest.y,
                                                     i % 2 == 0 ? lse.x : lse.y, -kMinusInfinity);
        s[i] = i / 4 * 8 + i % 2 < left ? ptx::ex2_approx(exponent) : 0.0F;
      }
    }
  }

  /// P becomes P (dP - D). Of a pair that is hidden, dP may be anything.
  __device__ __forceinline__ static void to_score_gradients(Scores<C>& p, const Scores<C>& dp,
                                                            const RowNumbers<C>& d_sum) {
#pragma unroll
    for (int j = 0; j < C.block_m / 8; ++j) {
      const float2 d = row_numbers<C>(d_sum, j);
#pragma unroll
      for (int i = 4 * j; i < 4 * j + 4; ++i) {
        p[i] = p[i] == 0.0F ? 0.0F : p[i] * (dp[i] - (i % 2 == 0 ? d.x : d.y));
      }
    }
  }

  const Params& params_;
  unsigned char* smem_;
  BiasGradientBarriers<C>& barriers_;
  score::CaptureGradients<C.block_m / 2> sums_;
  expression::Position first_;  // the pair of this thread's first score in the tile before
  bool has_sums_ = false;       // of this walk
  RingPosition<kPlan.score_stages> scores_;
  RingPosition<kPlan.gradient_stages> gradients_at_;
};

/// Grid: as many CTAs as run at once, or one for each walk where these are fewer. `walks`: every sequence and head has
/// its own.
template <Config C>
__global__ void __launch_bounds__(kBiasGradientThreads, 1)
    capture_gradient(const __grid_constant__ TensorMaps maps,
                     const __grid_constant__ sequence::KernelParams<C.rule, Params> params,
                     const __grid_constant__ BiasGradientParams walks,
                     const __grid_constant__ expression::Captures gradients) {
  static_assert(C.by_roles && C.captures && C.bias_stages == 0 && C.rule.text.score);
  static_assert(kKeyWarpgroups * block_n(C) == kWalkStep * C.block_m);  // tiles of a walk have the same diagonals
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
        for_each_walk(params, walks, visit, [] {});
      });
    }
  } else if (warpgroup == 1) {
    ptx::setmaxnreg_inc<232>();
    CaptureGradient<C, 0>(params, gradients, smem, barriers).run(walks);
  } else {
    ptx::setmaxnreg_inc<232>();
    CaptureGradient<C, 1>(params, gradients, smem, barriers).run(walks);
  }
}

}  // namespace strobe::sm90::backward
