// SPDX-License-Identifier: Apache-2.0
// The five products of one step, as the WGMMAs of one warpgroup: issued, not awaited.
#pragma once

#include "kernels/math/hi_lo.h"
#include "kernels/sm90/backward/smem.h"
#include "kernels/sm90/ptx/warpgroup.h"
#include "kernels/sm90/ptx/wgmma.h"
#include "kernels/sm90/tile/descriptor.h"

namespace strobe::sm90::backward {

/// S^T = K Q^T or dP^T = V dO^T: 64 keys x block_m queries. Both operands K-major; `keys` begins at the warpgroup's.
template <Config C, int columns, bool accumulate = false>
__device__ __forceinline__ void multiply_transposed(float (&d)[C.block_m / 2], Descriptor keys, Descriptor queries) {
  ptx::wgmma_ss<C.rule.element, accumulate>(d, keys, queries);
#pragma unroll
  for (int step = 1; step < columns / 16; ++step) {
    ptx::wgmma_ss<C.rule.element, true>(d, keys + k_major_step(step, block_n(C)),
                                        queries + k_major_step(step, C.block_m));
  }
}

/// S^T = K Q^T or dP^T = V dO^T plus a number for each query, which rows of 16 bytes hold in parts
/// (kernels/math/hi_lo.h).
template <Config C, int columns>
__device__ __forceinline__ void multiply_transposed_and_add(float (&d)[C.block_m / 2], Descriptor keys,
                                                            Descriptor queries, RowsDescriptor numbers) {
  int thread;  // read anew, so that what follows from it does not stay in registers between steps
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(thread));
  const uint32_t factors = hi_lo_factors<C.rule.element>(thread % 4);
  const uint32_t a[4] = {factors, factors, 0U, 0U};
  ptx::wgmma_rs_k<C.rule.element>(d, a, numbers, 0);
  multiply_transposed<C, columns, true>(d, keys, queries);
}

/// dV += P^T dO or dK += dS^T Q: A is this thread's fragments, sixteen queries each; B lies MN-major.
template <Config C, int n>
__device__ __forceinline__ void accumulate_keys(float (&d)[n], const uint32_t (&a)[C.block_m / 16][4],
                                                Descriptor queries, int accumulate) {
  ptx::wgmma_rs<C.rule.element>(d, a[0], queries, accumulate);
#pragma unroll
  for (int step = 1; step < C.block_m / 16; ++step) {
    ptx::wgmma_rs<C.rule.element>(d, a[step], queries + mn_major_step(step), 1);
  }
}

/// dQ = dS K, or dQ += dS K: a part of a step's dQ over all keys of the tile, both operands MN-major. `stage`: of dS.
template <Config C, bool accumulate>
__device__ __forceinline__ void multiply_keys(float (&d)[query_gradient_columns(C) / 2], unsigned char* smem, int part,
                                              int stage) {
  constexpr SmemPlan kPlan = smem_plan(C);
  constexpr int kPanelBytes = block_n(C) * kPanelRowBytes;
  static_assert(query_gradient_columns(C) % kPanelColumns == 0);
  const int ds_panel = query_gradient_by_rows(C) ? part : 0;
  const int k_panel = query_gradient_by_rows(C) ? 0 : part * (query_gradient_columns(C) / kPanelColumns);
  const Descriptor ds =
      descriptor_mn_major(smem + kPlan.ds + ds_panel * kPanelBytes, block_n(C)) + stage * (kPlan.ds_bytes >> 4);
  const Descriptor k = descriptor_mn_major(smem + kPlan.k + k_panel * kPanelBytes, block_n(C));
  ptx::wgmma_ss_mn<C.rule.element, accumulate>(d, ds, k);
#pragma unroll
  for (int step = 1; step < block_n(C) / 16; ++step) {
    ptx::wgmma_ss_mn<C.rule.element, true>(d, ds + mn_major_step(step), k + mn_major_step(step));
  }
}

}  // namespace strobe::sm90::backward
