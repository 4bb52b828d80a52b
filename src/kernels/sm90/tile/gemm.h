// SPDX-License-Identifier: Apache-2.0
// The two products of one step, as the WGMMAs of one warpgroup: issued, not awaited.
#pragma once

#include "kernels/sm90/ptx/warpgroup.h"
#include "kernels/sm90/ptx/wgmma.h"
#include "kernels/sm90/tile/descriptor.h"

namespace strobe::sm90 {

/// S = Q K^T: 64 x N scores from 64 rows of Q and N keys, both K-major in shared memory; 2 N is the length of s.
template <Element element, int head_dim, int registers>
__device__ __forceinline__ void gemm_scores(float (&s)[registers], Descriptor q, Descriptor k) {
  constexpr int kKeys = 2 * registers;
  ptx::wgmma_ss<element, false>(s, q, k);
#pragma unroll
  for (int step = 1; step < head_dim / 16; ++step) {
    ptx::wgmma_ss<element, true>(s, q + k_major_step(step, kRowsPerWarpgroup), k + k_major_step(step, kKeys));
  }
}

/// O (+)= P V: P is this thread's A fragments, sixteen keys each; V lies MN-major in shared memory.
template <Element element, int registers, int steps>
__device__ __forceinline__ void gemm_output(float (&o)[registers], const uint32_t (&p)[steps][4], Descriptor v,
                                            int accumulate) {
  ptx::wgmma_rs<element>(o, p[0], v, accumulate);
#pragma unroll
  for (int step = 1; step < steps; ++step) {
    ptx::wgmma_rs<element>(o, p[step], v + mn_major_step(step), 1);
  }
}

/// S = Q K^T of 8-bit operands.
template <Element operands, int head_dim, typename Sum, int registers>
__device__ __forceinline__ void gemm_scores_8(Sum (&s)[registers], Descriptor q, Descriptor k) {
  constexpr int kKeys = 2 * registers;
  ptx::wgmma_ss_8<operands, false>(s, q, k);
#pragma unroll
  for (int step = 1; step < head_dim / 32; ++step) {
    ptx::wgmma_ss_8<operands, true>(s, q + k_major_step(step, kRowsPerWarpgroup), k + k_major_step(step, kKeys));
  }
}

/// O (+)= P V of 8-bit operands, or some of its columns: P is this thread's A fragments, 32 keys each; V, of
/// `head_dim_v` columns, lies transposed, and so K-major.
template <Element operands, bool accumulate, int head_dim_v, typename Sum, int registers, int steps>
__device__ __forceinline__ void gemm_output_8(Sum (&o)[registers], const uint32_t (&p)[steps][4], Descriptor v) {
  ptx::wgmma_rs_8<operands, accumulate>(o, p[0], v);
#pragma unroll
  for (int step = 1; step < steps; ++step) {
    ptx::wgmma_rs_8<operands, true>(o, p[step], v + k_major_step(step, head_dim_v));
  }
}

}  // namespace strobe::sm90
