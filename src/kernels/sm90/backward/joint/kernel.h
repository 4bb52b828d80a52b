// SPDX-License-Identifier: Apache-2.0
// FlashAttention's backward on Hopper, the joint design: dK, dV and the sums of dQ from Q, K, V, dO, LSE and D.
//
// A CTA holds 128 keys and walks over the queries that see them, of every query head that reads the key head. Warpgroup
// 0 produces, the two after it hold dK and dV of 64 keys each, and the last one computes dQ, which it adds to sums in
// global memory. finish.h, a kernel of its own, makes dQ of the sums.
//
// Read in this order:
//   ../config.h, ../smem.h, ../barriers.h    what a variant is, what lies where, who waits for whom
//   ../work.h, ../producer.h                 which keys a CTA has, and how tiles arrive
//   key_warpgroup.h                          the loop of the keys; halves.h, ../scores.h, ../products.h: its arithmetic
//   ../bias_ring.h                           a bias on its way in
//   query_warpgroup.h, query_sums.h          the loop of the queries, and how their sums are added to
//   query_gradient_order.h, query_gradient_semaphore.h, ordered_query_warpgroup.h, query_sender.h
//                                            the same in a fixed order, for the same bits every time
//   ../epilogue.h                            dK and dV on their way out
//   finish.h, query_rows.h                   dQ of its sums
//
// Source: Dao, "FlashAttention-2" (2023), algorithm 2; Shah et al., "FlashAttention-3" (2024), appendix on the
// backward.
#pragma once

#include "kernels/ptx/grid.h"
#include "kernels/sm90/backward/joint/key_warpgroup.h"
#include "kernels/sm90/backward/joint/ordered_query_warpgroup.h"
#include "kernels/sm90/backward/joint/query_sender.h"
#include "kernels/sm90/backward/joint/query_warpgroup.h"
#include "kernels/sm90/backward/producer.h"

namespace strobe::sm90::backward {

/// The warpgroup's number is a constant to each: what follows from it takes no registers. False: see KeyWarpgroup::run.
template <Config C, int warpgroup>
__device__ __forceinline__ bool hold_keys(const TensorMaps& maps, const Params& params, unsigned char* smem,
                                          Barriers<C>& barriers) {
  ptx::setmaxnreg_inc<register_budget(C).keys>();
  return KeyWarpgroup<C, warpgroup>(maps, params, smem, barriers).run();
}

/// The first warpgroup where the sums of dQ are added to in order: a producer, and senders.
template <Config C>
__device__ __forceinline__ void produce_or_send(const TensorMaps& maps, const Params& params, unsigned char* smem,
                                                Barriers<C>& barriers) {
  const int warp = __shfl_sync(kFullWarp, threadIdx.x / kWarpSize, 0);
  if (warp == 0) {
    if (threadIdx.x == 0) {
      Producer<C>(maps, params, smem, barriers).run();
    }
  } else if (threadIdx.x % kWarpSize == 0) {
    QuerySender<C>(smem, barriers, warp - 1).run();
  }
}

/// Grid: blocks of keys of all key heads.
template <Config C>
__global__ void __launch_bounds__(threads_per_block(C), 1)
    joint_kernel(const __grid_constant__ TensorMaps maps,
                 const __grid_constant__ sequence::KernelParams<C.rule, Params> params) {
  static_assert(!C.by_roles);
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
  bool done = true;
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<register_budget(C).producer>();
    if constexpr (C.ordered) {
      produce_or_send<C>(maps, params, smem, barriers);
    } else if (threadIdx.x < (C.rule.block_mask != 0 ? kWarpSize : 1)) {
      Producer<C>(maps, params, smem, barriers).run();
    } else if (C.bias_stages > 0 && threadIdx.x == kWarpSize) {
      if constexpr (C.bias_stages > 0) {
        feed_bias<C>(maps.bias, params, smem, barriers);
      }
    }
  } else if (warpgroup == 1) {
    done = hold_keys<C, 0>(maps, params, smem, barriers);
  } else if (warpgroup == 2) {
    done = hold_keys<C, 1>(maps, params, smem, barriers);
  } else {
    ptx::setmaxnreg_dec<register_budget(C).queries>();
    if constexpr (C.ordered) {
      OrderedQueryWarpgroup<C>(params, smem, barriers).run();
    } else {
      QueryWarpgroup<C>(params, smem, barriers).run();
    }
  }
  if (C.rule.normalized && !done) {
    KeyWarpgroup<C, kEitherWarpgroup>(maps, params, smem, barriers).run_large();
  }
}

}  // namespace strobe::sm90::backward
