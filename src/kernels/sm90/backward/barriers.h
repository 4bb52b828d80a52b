// SPDX-License-Identifier: Apache-2.0
// The backward kernel's barriers and what they promise.
//
// clang-format off: a table
//   barrier                 arrivals per phase             bytes             waits      means
//   q_full[s]               1: producer                    Q, LSE            keys       stage s holds a block of queries
//   q_empty[s]              1 per warp of keys                               producer   no warp reads it any more
//   do_full[s], do_empty[s] as Q, with dO and D
//   k_full, v_full          1: producer                    K tile, V tile    all        the keys are there
//   handed_full[s]          joint: 1 per warp of keys                        queries    dS of a step is written
//                           by roles: 1 per warp of the first                the second P of a step is written
//   handed_empty[s]         1 per warp of the reader                         writers    it was read
//   announced[s]            1: queries                                       sender s   where its next part of dQ goes
//   staged_full[s]          1 per warp of queries                            sender s   a part of dQ is staged for it
//   staged_empty            1: a sender                                      queries    the staged part was read
// clang-format on
//
// Named barriers (0 is __syncthreads). kLastRead: K is read no more, and by roles V. kWarpgroup + w: of the keys'
// warpgroup w. kQueries: of the queries' warpgroup.
//
// Producers start on the opposite parity, so that the first wait for an empty stage passes.
#pragma once

#include "kernels/sm90/backward/smem.h"
#include "kernels/sm90/ptx/cuda_ptx.h"
#include "kernels/sm90/ptx/warpgroup.h"
#include "kernels/sm90/tile/pipeline.h"

namespace strobe::sm90::backward {

using cuda::std::uint32_t;
using cuda::std::uint64_t;

constexpr int kLastRead = 1;
constexpr int kWarpgroup = 2;
constexpr int kQueries = kWarpgroup + kKeyWarpgroups;

template <auto C>
__device__ __forceinline__ void wait(uint64_t& barrier, uint32_t parity) {
  sm90::wait<C.debug>(barrier, parity);
}

template <auto C>
__device__ __forceinline__ void arrive(uint64_t& barrier) {
  sm90::arrive<C.debug>(barrier);
}

template <Config C>
struct BiasBarriers {
  __device__ void init() {}
};

template <Config C>
  requires(C.bias_stages > 0)
struct BiasBarriers<C> {
  uint64_t bias_full[C.bias_stages], bias_empty[C.bias_stages];

  __device__ void init() {
    for (int s = 0; s < C.bias_stages; ++s) {
      cuda::ptx::mbarrier_init(&bias_full[s], 1);
      cuda::ptx::mbarrier_init(&bias_empty[s],
                               block_n(C) / kRowsPerWarpgroup * kWarpsPerWarpgroup * kWarpArrivals<C.debug>);
    }
  }
};

template <Config C>
struct Barriers : BiasBarriers<C> {
  uint64_t q_full[C.q_stages], q_empty[C.q_stages];
  uint64_t do_full[C.do_stages], do_empty[C.do_stages];
  uint64_t handed_full[kScoreGradientStages], handed_empty[kScoreGradientStages];
  uint64_t announced[kSenders], staged_full[kSenders], staged_empty;
  uint64_t k_full, v_full;

  /// Initialises the barriers. By one thread, before anyone uses them.
  __device__ void init() {
    BiasBarriers<C>::init();
    constexpr uint32_t kWarpgroupArrivals = kWarpsPerWarpgroup * kWarpArrivals<C.debug>;
    constexpr uint32_t kKeyArrivals = kKeyWarpgroups * kWarpgroupArrivals;
    for (int s = 0; s < C.q_stages; ++s) {
      cuda::ptx::mbarrier_init(&q_full[s], 1);
      cuda::ptx::mbarrier_init(&q_empty[s], kKeyArrivals);
    }
    for (int s = 0; s < C.do_stages; ++s) {
      cuda::ptx::mbarrier_init(&do_full[s], 1);
      cuda::ptx::mbarrier_init(&do_empty[s], kKeyArrivals);
    }
    for (int s = 0; s < kScoreGradientStages; ++s) {
      cuda::ptx::mbarrier_init(&handed_full[s], C.by_roles ? kWarpgroupArrivals : kKeyArrivals);
      cuda::ptx::mbarrier_init(&handed_empty[s], kWarpgroupArrivals);
    }
    if constexpr (C.ordered) {
      for (int s = 0; s < kSenders; ++s) {
        cuda::ptx::mbarrier_init(&announced[s], 1);
        cuda::ptx::mbarrier_init(&staged_full[s], kWarpgroupArrivals);
      }
      cuda::ptx::mbarrier_init(&staged_empty, 1);
    }
    cuda::ptx::mbarrier_init(&k_full, 1);
    cuda::ptx::mbarrier_init(&v_full, 1);
    cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
  }
};

}  // namespace strobe::sm90::backward
