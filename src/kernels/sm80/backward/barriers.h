// SPDX-License-Identifier: Apache-2.0
// Who waits for whom. Warps do not meet: each goes on as soon as what it needs is there, so that one computes
// exponentials while others multiply.
//
//   full[stage]  Q, dO, LSE and D of a step have arrived: awaited before S
//   free         all warps are done with the step before: awaited before dS is stored and the next copies start
//   ready        all warps have stored their dS: awaited before dQ. With one stage, they are done with Q and dO, too
#pragma once

#include "kernels/sm80/backward/smem.h"
#include "kernels/sm80/ptx/mbarrier.h"
#include "kernels/sm80/tile/cta.h"

namespace strobe::sm80::backward {

template <Config C>
class Barriers {
 public:
  __device__ __forceinline__ explicit Barriers(uint32_t smem) : first_(smem + smem_plan(C).barriers) {}

  /// Initialises the barriers. By one thread; the CTA meets afterwards.
  __device__ __forceinline__ void init() const {
    for (int stage = 0; stage < C.stages; ++stage) {
      ptx::mbarrier_init(full(stage), threads_per_block(C));
    }
    ptx::mbarrier_init(free(), C.warps * kArrivals);
    ptx::mbarrier_init(ready(), C.warps * kArrivals);
  }

  __device__ __forceinline__ uint32_t full(int stage) const { return first_ + (2 + stage) * kBarrierBytes; }
  __device__ __forceinline__ uint32_t free() const { return first_; }
  __device__ __forceinline__ uint32_t ready() const { return first_ + kBarrierBytes; }

  /// What this warp's lanes did before is done.
  __device__ __forceinline__ static void arrive(uint32_t barrier) {
    __syncwarp();
    if (C.debug || lane_of_warp() == 0) {
      ptx::mbarrier_arrive(barrier);
    }
  }

  __device__ __forceinline__ static void wait(uint32_t barrier, uint32_t parity) {
    while (!ptx::mbarrier_test_wait(barrier, parity)) {
    }
  }

 private:
  // A warp's, at barriers where it counts once. In debug variants all its lanes arrive: of one that arrives for the
  // others racecheck takes only its own accesses to come before it, as ptxas leaves out the __syncwarp() before it.
  static constexpr int kArrivals = C.debug ? kWarpSize : 1;

  uint32_t first_;
};

}  // namespace strobe::sm80::backward
