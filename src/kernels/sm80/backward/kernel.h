// SPDX-License-Identifier: Apache-2.0
// FlashAttention-2's backward: dK, dV and the sums of dQ, from Q, K, V, dO, LSE and D, with mma.sync, on every GPU
// since sm_80.
//
// A CTA holds a block of keys and walks over the queries that see it, of every query head that reads the key head.
//
// In the order in which to read:
//   config.h, smem.h     what a variant is, and where everything lies in shared memory
//   tile.h, barriers.h   the loop: TileBackward::run; who waits for whom
//   products.h, scores.h    S^T and dP^T, and what becomes of them
//   query_gradient.h     dQ on its way out; finish.h converts it
//   epilogue.h           dK and dV to global memory
//   work.h, steps.h      which keys a CTA has, and which queries see them
//   exact_rows.h         non-finite values
//   bias_gradient.h      the gradient of a bias, by a kernel of its own
//
// Source: Dao, "FlashAttention-2" (2023), algorithm 2.
#pragma once

#include "kernels/ptx/grid.h"
#include "kernels/sm80/backward/tile.h"

namespace strobe::sm80::backward {

/// Debug variants: shared memory starts as NaN.
template <Config C>
__device__ __forceinline__ void poison(int bytes) {
  if constexpr (C.debug) {
    for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) {
      reinterpret_cast<unsigned*>(shared_memory())[i] = ~0U;
    }
    __syncthreads();
  }
}

/// Grid: n_blocks * heads_kv * batch.
template <Config C>
__global__ void __launch_bounds__(threads_per_block(C), C.ctas_per_sm)
    kernel(const __grid_constant__ sequence::KernelParams<C.rule, Params> params) {
  static_assert(is_consistent(C));
  poison<C>(smem_plan(C).total_bytes);
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  Work& work = *reinterpret_cast<Work*>(shared_memory() + smem_plan(C).work);
  if (threadIdx.x == 0) {
    work = work_of<C>(params, blockIdx.x);
    Barriers<C>(shared_address(shared_memory())).init();
  }
  __syncthreads();
  Steps<C> steps(params, work);
  const Step first = steps.first();
  if (steps.has(first)) {
    TileBackward<C>(params, work).run(steps, first);
  } else {
    store_no_gradients<C>(params, work);
  }
}

}  // namespace strobe::sm80::backward
