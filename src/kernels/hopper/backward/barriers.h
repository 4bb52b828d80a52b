// SPDX-License-Identifier: Apache-2.0
// The backward kernel's barriers and what they promise.
//
// clang-format off: a table
//   barrier                 arrivals per phase             bytes             waits      means
//   q_full[s]               1: producer                    Q, LSE            consumers  stage s holds a block of queries
//   q_empty[s]              4 x consumer warpgroups                          producer   no warp reads it any more
//   do_full[s], do_empty[s] as Q, with dO and D
//   p_full[s]               4: warps of the first            the second has P of a step (by roles)
//   p_empty[s]              4: warps of the second                           the first  P was read
//   k_full[s], v_full[s]    1: producer                    K tile, V tile    consumers  stage s holds the keys
//   kv_empty[s]             1 per consumer warpgroup                         producer   dK and dV have left through it
// clang-format on
//
// Named barriers (0 is __syncthreads), of all consumers: kLastRead: the last dQ is done, K may be overwritten.
// kScoreGradient: every warp has written its part of dS. kTurn: the first warpgroup has issued S and dP, the other may.
// kWarpgroup + w: of one warpgroup.
//
// Producers start on the opposite parity, so that the first wait for an empty stage passes. Phases run on over tiles.
#pragma once

#include <cuda/ptx>

#include "kernels/hopper/backward/smem.h"
#include "kernels/hopper/ptx/warpgroup.h"
#include "kernels/hopper/tile/pipeline.h"

namespace strobe::hopper::backward {

using cuda::std::uint32_t;
using cuda::std::uint64_t;

constexpr int kLastRead = 1;
constexpr int kScoreGradient = 2;
constexpr int kTurn = 3;
constexpr int kWarpgroup = 4;

template <Config C>
struct Barriers {
  uint64_t q_full[C.q_stages], q_empty[C.q_stages];
  uint64_t do_full[C.do_stages], do_empty[C.do_stages];
  uint64_t p_full[kScoreGradientStages], p_empty[kScoreGradientStages];
  uint64_t k_full[C.kv_stages], v_full[C.kv_stages], kv_empty[C.kv_stages];

  /// By one thread, before anyone uses them.
  __device__ void init() {
    constexpr int kReaders = kWarpsPerWarpgroup * C.consumer_warpgroups;
    for (int s = 0; s < C.q_stages; ++s) {
      cuda::ptx::mbarrier_init(&q_full[s], 1);
      cuda::ptx::mbarrier_init(&q_empty[s], kReaders);
    }
    for (int s = 0; s < C.do_stages; ++s) {
      cuda::ptx::mbarrier_init(&do_full[s], 1);
      cuda::ptx::mbarrier_init(&do_empty[s], kReaders);
    }
    for (int s = 0; s < kScoreGradientStages; ++s) {
      cuda::ptx::mbarrier_init(&p_full[s], kWarpsPerWarpgroup);
      cuda::ptx::mbarrier_init(&p_empty[s], kWarpsPerWarpgroup);
    }
    for (int s = 0; s < C.kv_stages; ++s) {
      cuda::ptx::mbarrier_init(&k_full[s], 1);
      cuda::ptx::mbarrier_init(&v_full[s], 1);
      cuda::ptx::mbarrier_init(&kv_empty[s], C.consumer_warpgroups);
    }
    cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
  }
};

__device__ __forceinline__ void wait(uint64_t& barrier, uint32_t parity) { hopper::wait<false>(barrier, parity); }

}  // namespace strobe::hopper::backward
