// SPDX-License-Identifier: Apache-2.0
// The backward by roles of heads of more than 256 columns: dK, dV and dS from Q, K, V, dO, LSE and D. 64 rows of dK or
// dV fill the registers of two warpgroups, so each role is a CTA, and the two of them are a cluster.
//
// The pair holds 64 keys and walks over the queries that see them, of every query head that reads the key head. In each
// CTA warpgroup 0 produces, one computes scores, and two hold half of the columns of the sums each. P goes from the
// first CTA to the second through shared memory, as float16, and dS to global memory, where another kernel multiplies
// it with K (../query_gradient/kernel.h). So no product is computed twice.
//
// One step:
//   first:  S^T = K Q^T; P = exp2(S - LSE), to the second; dV += P^T dO
//   second: dP^T = V dO^T; dS = P (dP - D), to global memory; dK += dS^T Q
// The sums of a step run under what is done to the scores of the next: its P or dS is handed on when the next product
// has been issued.
//
// Read in this order:
//   ../config.h, smem.h, barriers.h   what a variant is, what lies where, who waits for whom
//   ../work.h, steps.h, producer.h    which keys a pair has, and how tiles arrive
//   scores.h                          the product, in either CTA
//   probabilities.h, gradients.h      P and dS; ../scores.h has their arithmetic
//   sums.h                            dV and dK, and their way out
#pragma once

#include "kernels/ptx/grid.h"
#include "kernels/sm90/backward/wide/gradients.h"
#include "kernels/sm90/backward/wide/probabilities.h"
#include "kernels/sm90/backward/wide/producer.h"
#include "kernels/sm90/backward/wide/sums.h"

namespace strobe::sm90::backward {

/// The scores' warpgroup.
template <Config C, WideRole role>
__device__ __forceinline__ void compute_scores(const Params& params, unsigned char* smem, WideBarriers<C>& barriers,
                                               const Work& work) {
  if constexpr (role == WideRole::gradients) {
    WideGradients<C>(params, smem, barriers).run(work);
  } else if (score::has_large_rows<C.rule>(params, work.sequence, work.template first_query_head<C>(params),
                                           params.heads_per_kv)) {
    WideProbabilities<C>(params, smem, barriers).template run<true>(work);
  } else {
    WideProbabilities<C>(params, smem, barriers).template run<false>(work);
  }
}

/// One CTA of a pair, by its warpgroups.
template <Config C, WideRole role>
__device__ __forceinline__ void run_wide(const TensorMaps& maps, const Params& params, unsigned char* smem,
                                         WideBarriers<C>& barriers, int warpgroup) {
  constexpr WideRegisterBudget kRegisters = wide_register_budget(C.rule);
  ptx::griddepcontrol_wait();
  const Work work = work_of<C>(params, static_cast<int>(blockIdx.x) / ctas_per_item(C));
  const bool computes = has_wide_steps<C>(params, work);
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<kRegisters.producer>();
    if (computes && threadIdx.x == 0) {
      WideProducer<C, role>(maps, params, smem, barriers, work).feed_scores();
    } else if (computes && threadIdx.x == kWarpSize) {
      WideProducer<C, role>(maps, params, smem, barriers, work).feed_sums();
    }
  } else if (warpgroup == 1) {
    ptx::setmaxnreg_inc<kRegisters.scores>();
    if (computes) {
      compute_scores<C, role>(params, smem, barriers, work);
    } else {
      store_no_gradients<C>(params, work, static_cast<int>(role));
    }
  } else {
    ptx::setmaxnreg_inc<kRegisters.sums>();
    if (computes) {
      WideSums<C, role>(maps, params, smem, barriers, warpgroup - 2).run(work);
    }
  }
}

/// Grid: the launch's items times two.
template <Config C>
__global__ void __cluster_dims__(ctas_per_item(C), 1, 1) __launch_bounds__(threads_per_block(C), 1)
    wide_kernel(const __grid_constant__ TensorMaps maps,
                const __grid_constant__ sequence::KernelParams<C.rule, Params> params) {
  static_assert(C.wide && C.by_roles && !C.shares_keys && C.bias_stages == 0 && C.rule.block_mask % block_n(C) == 0);
  extern __shared__ __align__(1024) unsigned char smem[];
  constexpr int kBarriers = wide_smem_plan(C).barriers;
  auto& barriers = *reinterpret_cast<WideBarriers<C>*>(smem + kBarriers);
  if (threadIdx.x == 0) {
    for (const TensorMap* map : {&maps.q, &maps.k, &maps.v, &maps.d_o, &maps.dk, &maps.dv}) {
      ptx::prefetch_tensor_map(map);
    }
    barriers.init();
  }
  poison<C.debug>(smem, kBarriers);
  ptx::griddepcontrol_launch_dependents();
  sync_pair();
  const int warpgroup = __shfl_sync(kFullWarp, threadIdx.x / kWarpgroupSize, 0);
  if (blockIdx.x % ctas_per_item(C) == 0) {
    run_wide<C, WideRole::probabilities>(maps, params, smem, barriers, warpgroup);
  } else {
    run_wide<C, WideRole::gradients>(maps, params, smem, barriers, warpgroup);
  }
  sync_pair();
}

}  // namespace strobe::sm90::backward
