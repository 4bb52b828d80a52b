// SPDX-License-Identifier: Apache-2.0
// The gradients of captures: S and dP of every block once more, and what its pairs add to what a text read
// (score/capture_gradients.h). Warpgroup 0 produces as for the bias's gradient, where every sequence and
// head has tiles of its own; the two after it hold 64 keys each. A CTA's tiles follow diagonals, so that what a thread
// sums of a diagonal or a head stays in its registers from one tile to the next.
#pragma once

#include "kernels/ptx/grid.h"
#include "kernels/score/capture_gradients.h"
#include "kernels/sm90/backward/bias_gradient/feeder.h"
#include "kernels/sm90/backward/capture_gradient/walk.h"
#include "kernels/sm90/backward/kept_gradients.h"
#include "kernels/sm90/backward/products.h"
#include "kernels/sm90/backward/score_factors.h"

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
    score_factors(block, p, lse_log2, bias,
                  [&](int i, const expression::Position&, float score) { before[i] = score; });

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
    to_score_gradients(block, p, dp, d_sum);

    first_ = first_pair(block);
    has_sums_ = true;
    sums_.add(first_, p, before);
  }

  /// P becomes P (dP - D). Of a pair that is hidden, dP may be anything.
  __device__ __forceinline__ static void to_score_gradients(const ScoreBlock<C>& block, Scores<C>& p,
                                                            const Scores<C>& dp, const RowNumbers<C>& d_sum) {
    for_each_kept_gradient(block, dp, d_sum,
                           [&](int i, float gradient, float d) { p[i] = p[i] == 0.0F ? 0.0F : p[i] * (gradient - d); });
  }

  const Params& params_;
  unsigned char* smem_;
  BiasGradientBarriers<C>& barriers_;
  score::CaptureGradients<C.block_m / 2, C.ordered> sums_;
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
