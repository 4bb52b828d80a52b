// SPDX-License-Identifier: Apache-2.0
// After the joint design's backward: the float32 sums of dQ, scaled and converted. Where they were added to in order,
// dQ is there already, and what is left are blocks of queries that no block of keys came to. In both cases rows that
// are not finite and may have got that from hidden pairs are computed again.
#pragma once

#include "kernels/ptx/grid.h"
#include "kernels/sequence/clear_rows.h"
#include "kernels/sm90/backward/config.h"
#include "kernels/sm90/backward/converted_sums.h"
#include "kernels/sm90/backward/coordinates.h"
#include "kernels/sm90/backward/exact_rows.h"
#include "kernels/sm90/backward/joint/query_gradient_semaphore.h"
#include "kernels/sm90/backward/joint/query_sums.h"

namespace strobe::sm90::backward {

using score::QueryBlock;

/// Zeros in rows [first, end) of the block's sequence.
__device__ __forceinline__ void clear_queries(const Params& params, const QueryBlock& block, int first, int end) {
  clear_rows(params.dq, params.head_dim, score::q_batch(params, block.sequence), block.head, block.q.start + first,
             block.q.start + min(end, block.q.owned), threadIdx.x, blockDim.x);
}

/// dQ of a block from its sums. False if this thread of a masked variant had a value that is not finite.
template <Config C>
__device__ __forceinline__ bool convert_query_gradient(const Params& params, const QueryBlock& block) {
  const int part = threadIdx.x / kWarpgroupSize;
  const float4* sums = own_sums(part_sums<C>(params, block.in_workspaces<C.rule>(params, C.block_m), part));
  const QueryPart<C> place(block.m, part);
  const float factor = score::gradient_scale<C.rule>(params, block.k.used) * score_gradient_factor(C);
  constexpr int kColumns = query_gradient_columns(C);
  return convert_sums<C, kColumns, kColumns / 32>(
      factor, [&](int i) { return sums[i * kWarpgroupSize]; },
      [&](int first, int r, const uint32_t (&words)[4]) {
        store_query_columns<C>(params, block, block.sequence, block.head, place, first, r, words);
      });
}

/// Zeros where no block of keys came to. False if a value is not finite.
template <Config C>
__device__ __forceinline__ bool check_query_gradient(const Params& params, const QueryBlock& block) {
  const unsigned* semaphores = params.dq_semaphores + block.in_workspaces<C.rule>(params, C.block_m) * kOrderedParts;
  if (semaphores[0] == 0) {
    clear_queries(params, block, block.m * C.block_m, (block.m + 1) * C.block_m);
  }
  return semaphores[0] != kNotFinite && semaphores[1] != kNotFinite;
}

/// Grid: m_blocks * heads * batch; finish_threads().
template <Config C>
__global__ void __launch_bounds__(finish_threads(C), 1)  // registers for repair_queries()
    finish_query_gradient(const __grid_constant__ sequence::KernelParams<C.rule, Params> params) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const auto block = QueryBlock::of<C.rule>(params, blockIdx.x);
  const int first = block.m * C.block_m;
  if (first < block.q.used) {
    const bool finite = C.ordered ? check_query_gradient<C>(params, block) : convert_query_gradient<C>(params, block);
    if (is_masked(C.rule) && __syncthreads_or(finite ? 0 : 1) != 0) {
      constexpr int kRows = C.block_m / (kWarpsPerWarpgroup * query_gradient_parts(C));  // of a warp
      const int begin = first + static_cast<int>(threadIdx.x) / kWarpSize * kRows;
      repair_queries<C.rule, C.head_dim>(params, block, block.sequence, block.head, C.block_m, begin, begin + kRows);
    }
  } else {  // those behind the last sequence may be more than its blocks: hence the stride
    for (int row = first; row < block.q.owned; row += params.m_blocks * C.block_m) {
      clear_queries(params, block, row, row + C.block_m);
    }
  }
}

}  // namespace strobe::sm90::backward
