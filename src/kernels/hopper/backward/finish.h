// SPDX-License-Identifier: Apache-2.0
// After the backward: the float32 sums of dQ, scaled and converted. They lie in the order of the accumulators'
// registers (query_gradient.h); four threads exchange theirs so that each stores 16 bytes of a row.
#pragma once

#include "kernels/hopper/backward/config.h"
#include "kernels/hopper/backward/coordinates.h"
#include "kernels/hopper/backward/exact_rows.h"
#include "kernels/hopper/backward/query_gradient.h"
#include "kernels/hopper/ptx/grid.h"
#include "kernels/hopper/tile/fragment.h"

namespace strobe::hopper::backward {

/// Thread i of a quad has word j of four 16-byte chunks in words[j]... of chunk j its own; afterwards all of chunk i.
__device__ __forceinline__ uint4 exchange_quad(const uint32_t (&words)[4]) {
  const int lane = threadIdx.x % 4;
  uint32_t chunk[4];
#pragma unroll
  for (int turn = 0; turn < 4; ++turn) {
    // In each turn thread i gives word i ^ turn to thread i ^ turn.
    const int other = lane ^ turn;
    const uint32_t give = other == 0 ? words[0] : other == 1 ? words[1] : other == 2 ? words[2] : words[3];
    const uint32_t got = __shfl_xor_sync(kFullWarp, give, turn);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i == other) {
        chunk[i] = got;
      }
    }
  }
  return {chunk[0], chunk[1], chunk[2], chunk[3]};
}

/// A block of queries and its head, by the number of a CTA: all blocks of a head before the next head's.
struct QueryBlock : score::Sequence {
  int sequence, head, m;

  template <ScoreRule R>
  __device__ __forceinline__ static QueryBlock of(const Params& params, int number) {
    const int flat = number / params.m_blocks;
    const int sequence = flat / params.heads;
    QueryBlock block{sequence_of<R>(params, sequence)};
    block.sequence = sequence;
    block.head = flat - sequence * params.heads;
    block.m = number - flat * params.m_blocks;
    return block;
  }
};

/// The rows of a block that are in use; the others are zeros. False if this thread of a masked variant had a value that
/// is not finite.
template <Config C>
__device__ __forceinline__ bool convert_query_gradient(const Params& params, const QueryBlock& block) {
  constexpr int kColumns = query_gradient_columns(C);
  const int warpgroup = threadIdx.x / kWarpgroupSize;
  const long long tile = first_block_of<C.rule>(params, block.sequence, block.head, C.block_m) + block.m;
  const auto* sums = reinterpret_cast<const float4*>(params.dq_sum + tile * (C.block_m * C.head_dim) +
                                                     warpgroup * (C.block_m * C.head_dim / C.consumer_warpgroups)) +
                     threadIdx.x % kWarpgroupSize;
  const int row = block.m * C.block_m + (query_gradient_by_rows(C) ? warpgroup * kRowsPerWarpgroup : 0);
  const int column = query_gradient_by_rows(C) ? 0 : warpgroup * kColumns;
  float zero = 0.0F;  // NaN if a value is not finite
#pragma unroll
  for (int first = 0; first < kColumns / 8; first += 4) {
    uint32_t words[kRowsPerThread][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 x = sums[(first + j) * kWarpgroupSize];
      if constexpr (is_masked(C.rule)) {
        zero = __fmaf_rn(x.x, 0.0F, __fmaf_rn(x.y, 0.0F, __fmaf_rn(x.z, 0.0F, __fmaf_rn(x.w, 0.0F, zero))));
      }
      words[0][j] = pack<C.rule.element>(x.x * params.scale, x.y * params.scale);
      words[1][j] = pack<C.rule.element>(x.z * params.scale, x.w * params.scale);
    }
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const uint4 chunk = exchange_quad(words[r]);
      const int at = column + (first + static_cast<int>(threadIdx.x % 4)) * 8;
      const int query = row + warpgroup_row(r);
      if (query < block.q.owned && at < params.head_dim) {
        unsigned short* to = params.dq.row(q_batch(params, block.sequence), block.q.start + query, block.head) + at;
        *reinterpret_cast<uint4*>(to) = query < block.q.used ? chunk : make_uint4(0, 0, 0, 0);
      }
    }
  }
  return zero == 0.0F;
}

/// Grid: m_blocks * heads * batch; as many threads as the consumers of the backward.
template <Config C>
__global__ void __launch_bounds__(kWarpgroupSize* C.consumer_warpgroups, 1)  // registers for repair_queries()
    finish_query_gradient(const __grid_constant__ Params params) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const auto block = QueryBlock::of<C.rule>(params, blockIdx.x);
  const int first = block.m * C.block_m;
  if (first < block.q.used) {
    const bool finite = convert_query_gradient<C>(params, block);
    if (is_masked(C.rule) && __syncthreads_or(finite ? 0 : 1) != 0) {
      constexpr int kRows = C.block_m / (kWarpsPerWarpgroup * C.consumer_warpgroups);  // of a warp
      const int begin = first + static_cast<int>(threadIdx.x) / kWarpSize * kRows;
      repair_queries<C.rule, C.head_dim>(params, block, block.sequence, block.head, C.block_m, begin, begin + kRows);
    }
  } else {  // those behind the last sequence may be more than its blocks: hence the stride
    for (int row = first; row < block.q.owned; row += params.m_blocks * C.block_m) {
      clear_rows(params.dq, params.head_dim, q_batch(params, block.sequence), block.head, block.q.start + row,
                 block.q.start + min(row + C.block_m, block.q.owned), threadIdx.x, blockDim.x);
    }
  }
}

}  // namespace strobe::hopper::backward
