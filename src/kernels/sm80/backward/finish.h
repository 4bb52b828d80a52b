// SPDX-License-Identifier: Apache-2.0
// After the backward: the float32 sums of dQ, scaled and converted. Rows that are not finite and may have got that from
// hidden pairs are computed again.
#pragma once

#include "kernels/ptx/grid.h"
#include "kernels/sequence/clear_rows.h"
#include "kernels/sm80/backward/exact_rows.h"
#include "kernels/sm80/backward/query_gradient.h"
#include "kernels/sm80/tile/rows.h"

namespace strobe::sm80::backward {

using score::QueryBlock;

/// dQ of a block from its sums.
template <Config C>
__device__ __forceinline__ void convert_query_gradient(const Params& params, const QueryBlock& block) {
  using Part = QueryPart<C>;
  const long long number = block.in_workspaces<C.rule>(params, C.block_m);
  bool finite = true;
#pragma unroll 1
  for (Part part; part.slice < C.query_slices; ++part.slice) {
    typename Part::Sums dq;
    load_sums(part.sums(params, number), dq);
#pragma unroll
    for (int f = 0; f < Part::kFragments; ++f) {
      finite &= stage_fragment<C.rule.element, QTile<C>, is_repaired(C.rule)>(
          shared_memory(), part.row() + f * kFragmentRows, part.column() / kStep, dq[f],
          score::gradient_scale<C.rule>(params, block.k.used));
    }
  }
  const bool repair = __syncthreads_or(finite ? 0 : 1) != 0;
  const int first = block.m * C.block_m;
  store_tile<QTile<C>, C.block_m, threads_per_block(C)>(
      shared_memory(), params.dq.row(score::q_batch(params, block.sequence), block.q.start + first, block.head),
      params.dq.row_stride, block.q.used - first, block.q.owned - first, halves(C, params.head_dim));
  if (is_repaired(C.rule) && repair) {
    __syncthreads();
    repair_queries<C>(params, block, block.sequence, block.head, first);
  }
}

/// Grid: m_blocks * heads * batch.
template <Config C>
__global__ void __launch_bounds__(threads_per_block(C), 1)  // registers for repair_queries()
    finish_query_gradient(const __grid_constant__ sequence::KernelParams<C.rule, Params> params) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const auto block = QueryBlock::of<C.rule>(params, blockIdx.x);
  const int first = block.m * C.block_m;
  if (first < block.q.used) {
    convert_query_gradient<C>(params, block);
  } else {  // those behind the last sequence may be more than its blocks: hence the stride
    for (int row = first; row < block.q.owned; row += params.m_blocks * C.block_m) {
      clear_rows(params.dq, halves(C, params.head_dim), score::q_batch(params, block.sequence), block.head,
                 block.q.start + row, block.q.start + min(row + C.block_m, block.q.owned), threadIdx.x, blockDim.x);
    }
  }
}

}  // namespace strobe::sm80::backward
