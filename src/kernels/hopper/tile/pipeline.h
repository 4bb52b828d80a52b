// SPDX-License-Identifier: Apache-2.0
// Rings of shared-memory stages and the waits for their barriers.
#pragma once

#include <cuda/ptx>

#include "kernels/hopper/ptx/warpgroup.h"
#include "kernels/hopper/tile/warpgroup.h"

namespace strobe::hopper {

using cuda::std::uint32_t;
using cuda::std::uint64_t;

/// Position in a ring of stages: which stage, and the parity of its barriers there.
template <int stages>
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// Waits for the phase of that parity to complete. Traps in debug variants where it never does.
template <bool debug>
__device__ __forceinline__ void wait(uint64_t& barrier, uint32_t parity) {
  if constexpr (debug) {
    constexpr int kHopeless = 1 << 24;  // seconds: any honest wait is far shorter
    for (int tries = 0; !cuda::ptx::mbarrier_try_wait_parity(&barrier, parity); ++tries) {
      if (tries == kHopeless) {
        __trap();
      }
    }
  } else {
    while (!cuda::ptx::mbarrier_try_wait_parity(&barrier, parity)) {
    }
  }
}

/// One arrival for this warp.
__device__ __forceinline__ void arrive_once(uint64_t& barrier) {
  if (threadIdx.x % kWarpSize == 0) {
    cuda::ptx::mbarrier_arrive(&barrier);
  }
}

/// Announces `bytes` that TMA will write before the phase completes.
__device__ __forceinline__ void expect(uint64_t& full, int bytes) {
  cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cta, cuda::ptx::space_shared, &full,
                                       bytes);
}

}  // namespace strobe::hopper
