// The two products of one step, as the WGMMAs of one warpgroup: issued, not awaited.
#pragma once

#include "kernels/hopper/forward/config.h"
#include "kernels/hopper/ptx/warpgroup.h"
#include "kernels/hopper/ptx/wgmma.h"
#include "kernels/hopper/tile/descriptor.h"

namespace strobe::hopper {

/// S = Q K^T: 64 x block_n scores from 64 rows of Q and block_n keys, both K-major in shared memory.
template <KernelConfig C>
__device__ __forceinline__ void gemm_scores(float (&s)[C.block_n / 2], Descriptor q, Descriptor k) {
  ptx::wgmma_ss<C.element, false>(s, q, k);
#pragma unroll
  for (int step = 1; step < C.head_dim / 16; ++step) {
    ptx::wgmma_ss<C.element, true>(s, q + k_major_step(step, kRowsPerWarpgroup), k + k_major_step(step, C.block_n));
  }
}

/// O (+)= P V: P is this thread's A fragments, sixteen keys each; V lies MN-major in shared memory.
template <KernelConfig C>
__device__ __forceinline__ void gemm_output(float (&o)[C.head_dim_v / 2], const uint32_t (&p)[C.block_n / 16][4],
                                            Descriptor v, int accumulate) {
  ptx::wgmma_rs<C.element>(o, p[0], v, accumulate);
#pragma unroll
  for (int step = 1; step < C.block_n / 16; ++step) {
    ptx::wgmma_rs<C.element>(o, p[step], v + mn_major_step(step), 1);
  }
}

}  // namespace strobe::hopper
