// SPDX-License-Identifier: Apache-2.0
// Two CTAs of a cluster: arrivals at each other's barriers. Neither they nor the waits for them have the scope of the
// cluster: compiled, that fences all of a thread's memory and empties its L1. What one CTA stores in the other
// therefore completes bytes of a barrier there (ptx::st_async_v4). log: cluster-scope
#pragma once

#include "kernels/scheduler/tiling.h"
#include "kernels/sm90/ptx/cluster.h"
#include "kernels/sm90/tile/pipeline.h"

namespace strobe::sm90 {

/// Of a grid of one row.
__device__ __forceinline__ int rank_in_pair() { return static_cast<int>(blockIdx.x) % kPairCtas; }

/// All threads of both CTAs, before either uses the other's shared memory, and before either leaves.
__device__ __forceinline__ void sync_pair() {
  cuda::ptx::barrier_cluster_arrive();
  cuda::ptx::barrier_cluster_wait();
}

/// This warp's arrival at a barrier of the CTA of that rank, after __syncwarp(): it has read what may be overwritten.
template <bool debug>
__device__ __forceinline__ void arrive_at_peer(uint64_t& barrier, int rank) {
  if (debug || threadIdx.x % kWarpSize == 0) {
    ptx::mbarrier_arrive_cluster(ptx::map_shared(&barrier, static_cast<uint32_t>(rank)));
  }
}

/// The same at a barrier of both CTAs, by a lane for each.
template <bool debug>
__device__ __forceinline__ void arrive_at_both(uint64_t& barrier) {
  if constexpr (debug) {
    for (int rank = 0; rank < kPairCtas; ++rank) {
      arrive_at_peer<true>(barrier, rank);
    }
  } else if (threadIdx.x % kWarpSize < kPairCtas) {
    ptx::mbarrier_arrive_cluster(ptx::map_shared(&barrier, threadIdx.x % kWarpSize));
  }
}

}  // namespace strobe::sm90
