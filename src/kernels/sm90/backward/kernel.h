// SPDX-License-Identifier: Apache-2.0
// FlashAttention's backward on Hopper: dK, dV and the sums of dQ, or dS for them, from Q, K, V, dO, LSE and D.
//
// A CTA holds a block of keys and walks over the queries that see it, of every query head that reads the key head.
// Warpgroup 0 produces; the two after it hold dK and dV (joint: key_warpgroup.h; by roles: roles.h), and the
// joint design's last one computes dQ (query_warpgroup.h). barriers.h says who waits for whom.
//
// Source: Dao, "FlashAttention-2" (2023), algorithm 2; Shah et al., "FlashAttention-3" (2024), appendix on the
// backward.
#pragma once

#include "kernels/sm90/backward/barriers.h"
#include "kernels/sm90/backward/key_warpgroup.h"
#include "kernels/sm90/backward/ordered_query_warpgroup.h"
#include "kernels/sm90/backward/producer.h"
#include "kernels/sm90/backward/query_sender.h"
#include "kernels/sm90/backward/query_warpgroup.h"
#include "kernels/sm90/backward/roles.h"

namespace strobe::sm90::backward {

/// The warpgroup's number is a constant to each: what follows from it takes no registers. False: see KeyWarpgroup::run.
template <Config C, int warpgroup>
__device__ __forceinline__ bool consume(const TensorMaps& maps, const Params& params, unsigned char* smem,
                                        Barriers<C>& barriers) {
  ptx::setmaxnreg_inc<register_budget(C).keys>();
  if constexpr (C.by_roles) {
    consume_by_role<C, warpgroup>(maps, params, smem, barriers);
    return true;
  } else {
    return KeyWarpgroup<C, warpgroup>(maps, params, smem, barriers).run();
  }
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

template <Config C>
__global__ void __launch_bounds__(threads_per_block(C), 1)
    kernel(const __grid_constant__ TensorMaps maps, const __grid_constant__ Params params) {
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
    } else if (C.bias_stages > 0 && threadIdx.x == kWarpSize) {
      if constexpr (C.bias_stages > 0) {
        feed_bias<C>(maps.bias, params, smem, barriers);
      }
    } else if (threadIdx.x < (C.rule.block_mask != 0 ? kWarpSize : 1)) {
      Producer<C>(maps, params, smem, barriers).run();
    }
  } else if (warpgroup == 1) {
    done = consume<C, 0>(maps, params, smem, barriers);
  } else if (C.by_roles || warpgroup == 2) {
    done = consume<C, 1>(maps, params, smem, barriers);
  } else if constexpr (!C.by_roles) {
    ptx::setmaxnreg_dec<register_budget(C).queries>();
    if constexpr (C.ordered) {
      OrderedQueryWarpgroup<C>(params, smem, barriers).run();
    } else {
      QueryWarpgroup<C>(params, smem, barriers).run();
    }
  }
  if constexpr (!C.by_roles) {
    if (!done) {
      KeyWarpgroup<C, kEitherWarpgroup>(maps, params, smem, barriers).run_large();
    }
  }
}

}  // namespace strobe::sm90::backward
