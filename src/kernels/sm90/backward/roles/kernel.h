// SPDX-License-Identifier: Apache-2.0
// FlashAttention's backward on Hopper, by roles: dK, dV and dS from Q, K, V, dO, LSE and D. It takes what the joint
// design has no registers for.
//
// A CTA holds 64 keys and walks over the queries that see them, of every query head that reads the key head. Warpgroup
// 0 produces. The first one after it computes P and holds dV, the second computes dS and holds dK. P goes from one to
// the other through shared memory, as float16: it is at most 1, and what float16 loses of it is an eighth of what
// bfloat16 would. dS goes to global memory, where another kernel multiplies it with K (query_gradient/kernel.h).
//
// One step:
//   first:  S^T = K Q^T; P = exp2(S - LSE), to the second; dV += P^T dO
//   second: dP^T = V dO^T; dS = P (dP - D); dK += dS^T Q; under it dS to global memory
// The first runs ahead by up to two steps: what each computes between its products is done under the other's.
//
// Read in this order:
//   ../config.h, ../smem.h, ../barriers.h   what a variant is, what lies where, who waits for whom
//   ../work.h, ../producer.h                which keys a CTA has, and how tiles arrive
//   role.h                                  the walk over the steps
//   probability_role.h, gradient_role.h     the two consumers; ../scores.h and ../products.h have their arithmetic
//   ../epilogue.h                           dK and dV on their way out
//
// Source: Dao, "FlashAttention-2" (2023), algorithm 2; Shah et al., "FlashAttention-3" (2024), appendix on the
// backward.
#pragma once

#include "kernels/ptx/grid.h"
#include "kernels/sm90/backward/bias_ring.h"
#include "kernels/sm90/backward/epilogue.h"
#include "kernels/sm90/backward/producer.h"
#include "kernels/sm90/backward/roles/gradient_role.h"
#include "kernels/sm90/backward/roles/probability_role.h"

namespace strobe::sm90::backward {

/// One item that has steps, of the warpgroup of that number.
template <Config C, int role, bool has_large_rows>
__device__ __forceinline__ void run_role(const TensorMaps& maps, const Params& params, unsigned char* smem,
                                         Barriers<C>& barriers, const Work& work) {
  constexpr SmemPlan kPlan = smem_plan(C);
  const bool elected = threadIdx.x % kWarpgroupSize == 0;
  float sums[(role == 0 ? C.head_dim_v : C.head_dim) / 2];
  unsigned char* rows = smem + (role == 0 ? kPlan.v : kPlan.k);
  if constexpr (role == 0) {
    ProbabilityRole<C>(params, smem, barriers).template run<has_large_rows>(work, sums);
  } else {
    GradientRole<C>(params, smem, barriers).run(work, sums);
  }
  if constexpr (C.shares_keys) {
    constexpr int kColumns = role == 0 ? C.head_dim_v : C.head_dim;
    store_key_sums((role == 0 ? params.dv_sums : params.dk_sums) +
                       key_sums_at<C>(params, work, work.group_first / params.part_heads, 0, kColumns),
                   sums);
    return;
  }
  // Each warpgroup's gradients leave through what the other one read.
  ptx::barrier_sync(kLastRead, kWarpgroupSize * kKeyWarpgroups);
  const int row = work.n * block_n(C);
  const bool finite = stage_rows<C.rule, block_n(C)>(
      sums, role == 0 ? value_gradient_factor<C>(params) : score::gradient_scale<C.rule>(params, work.k.used),
      work.k.used - row, rows);
  cptx::fence_proxy_async(cptx::space_shared);
  const bool repair = ptx::bar_red_or(kWarpgroup + role, kWarpgroupSize, !finite);
  if (elected) {
    const SequenceStart start = key_start<C.rule>(params, work, work.sequence, work.k.owned);
    if constexpr (role == 0) {
      store_rows<C.head_dim_v, block_n(C)>(maps.dv, start, row, work.head_kv, rows);
    } else {
      store_rows<C.head_dim, block_n(C)>(maps.dk, start, row, work.head_kv, rows);
    }
    cptx::cp_async_bulk_wait_group_read(cptx::n32_t<0>{});
  }
  if (is_masked(C.rule) && repair) {
    finish_stores(kWarpgroup + role);
    repair_keys<C, role == 0 ? KeySide::v : KeySide::k>(params, work, row);
  }
}

/// One item, of the warpgroup of that number.
template <Config C, int role>
__device__ __forceinline__ void consume_by_role(const TensorMaps& maps, const Params& params, unsigned char* smem,
                                                Barriers<C>& barriers) {
  ptx::griddepcontrol_wait();
  const Work work = work_of<C>(params, blockIdx.x);
  if (!VisibleSteps<C>(params, work).any()) {
    store_no_gradients<C>(params, work, role);
    return;
  }
  if (role == 0 && score::has_large_rows<C.rule>(params, work.sequence, work.template first_query_head<C>(params),
                                                 work.template query_heads<C>(params))) {
    run_role<C, role, role == 0>(maps, params, smem, barriers, work);
  } else {
    run_role<C, role, false>(maps, params, smem, barriers, work);
  }
}

/// Grid: the launch's items.
template <Config C>
__global__ void __launch_bounds__(threads_per_block(C), 1)
    roles_kernel(const __grid_constant__ TensorMaps maps,
                 const __grid_constant__ sequence::KernelParams<C.rule, Params> params) {
  static_assert(C.by_roles);
  extern __shared__ __align__(1024) unsigned char smem[];
  auto& barriers = *reinterpret_cast<Barriers<C>*>(smem + smem_plan(C).barriers);
  if (threadIdx.x == 0) {
    for (const TensorMap* map : {&maps.q, &maps.k, &maps.v, &maps.d_o, &maps.dk, &maps.dv}) {
      ptx::prefetch_tensor_map(map);
    }
    barriers.init();
  }
  poison<C.debug>(smem, smem_plan(C).barriers);
  ptx::griddepcontrol_launch_dependents();
  __syncthreads();
  const int warpgroup = __shfl_sync(kFullWarp, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<register_budget(C).producer>();
    if (C.bias_stages > 0 && threadIdx.x == kWarpSize) {
      if constexpr (C.bias_stages > 0) {
        feed_bias<C>(maps.bias, params, smem, barriers);
      }
    } else if (threadIdx.x < (C.rule.block_mask != 0 ? kWarpSize : 1)) {
      Producer<C>(maps, params, smem, barriers).run();
    }
  } else if (warpgroup == 1) {
    ptx::setmaxnreg_inc<register_budget(C).keys>();
    consume_by_role<C, 0>(maps, params, smem, barriers);
  } else {
    ptx::setmaxnreg_inc<register_budget(C).keys>();
    consume_by_role<C, 1>(maps, params, smem, barriers);
  }
}

}  // namespace strobe::sm90::backward
