// SPDX-License-Identifier: Apache-2.0
// Rings of shared-memory stages and the waits for their barriers.
#pragma once

#include "kernels/sm90/ptx/cuda_ptx.h"
#include "kernels/sm90/ptx/warpgroup.h"
#include "kernels/sm90/tile/warpgroup.h"

namespace strobe::sm90 {

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

inline constexpr uint64_t kHopelessNanoseconds = 5'000'000'000;  // any honest wait is far shorter

/// Waits for the phase of that parity to complete. Traps in debug variants where it never does.
template <bool debug>
__device__ __forceinline__ void wait(uint64_t& barrier, uint32_t parity) {
  if constexpr (debug) {
    // Not in C++: around a loop that may trap, ptxas spills what is live.
    asm volatile(
        "{\n"
        ".reg .pred complete, hopeless;\n"
        ".reg .u64 start, now;\n"
        "mov.u64 start, %%globaltimer;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n"
        "@complete bra done;\n"
        "mov.u64 now, %%globaltimer;\n"
        "sub.u64 now, now, start;\n"
        "setp.gt.u64 hopeless, now, %2;\n"
        "@hopeless trap;\n"
        "bra again;\n"
        "done:\n"
        "}\n" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(&barrier))),
        "r"(parity), "n"(kHopelessNanoseconds)
        : "memory");
  } else {
    while (!cuda::ptx::mbarrier_try_wait_parity(&barrier, parity)) {
    }
  }
}

/// In debug variants, by all threads and before anyone uses the first `bytes` of shared memory: NaN in every format, so
/// that what TMA did not write shows.
template <bool debug>
__device__ __forceinline__ void poison(unsigned char* smem, int bytes) {
  if constexpr (debug) {
    for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) {
      reinterpret_cast<unsigned*>(smem)[i] = 0xffffffffU;
    }
    cuda::ptx::fence_proxy_async();
  }
}

/// One arrival for this warp. Where its lanes have read or written the stage themselves and not by WGMMAs alone,
/// __syncwarp() has to come before: the arrival releases what this lane did, and what it knows to have happened before.
__device__ __forceinline__ void arrive_once(uint64_t& barrier) {
  if (threadIdx.x % kWarpSize == 0) {
    cuda::ptx::mbarrier_arrive(&barrier);
  }
}

/// How often a warp arrives at a barrier at which it counts once. In debug variants each lane does: of a lane that
/// arrives for its warp racecheck takes only that lane's accesses to come before it, as ptxas leaves out the
/// __syncwarp() before it where it knows the warp to be converged.
template <bool debug>
inline constexpr uint32_t kWarpArrivals = debug ? kWarpSize : 1;

/// This warp's arrival, after __syncwarp() where its lanes have read or written the stage themselves.
template <bool debug>
__device__ __forceinline__ void arrive(uint64_t& barrier) {
  if constexpr (debug) {
    cuda::ptx::mbarrier_arrive(&barrier);
  } else {
    arrive_once(barrier);
  }
}

/// Announces `bytes` that TMA will write before the phase completes.
__device__ __forceinline__ void expect(uint64_t& full, int bytes) {
  cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cta, cuda::ptx::space_shared, &full,
                                       bytes);
}

}  // namespace strobe::sm90
