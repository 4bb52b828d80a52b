// SPDX-License-Identifier: Apache-2.0
// Before a backward: D = rowsum(dO O), less the gradient of LSE, and LSE in powers of two, for every row of whole
// blocks; and zeros where dQ will be summed. One group of threads a row, 16 bytes a thread and turn.
#pragma once

#include "kernels/math/constants.h"
#include "kernels/math/grid.h"
#include "kernels/math/split.h"
#include "kernels/score/query_blocks.h"
#include "kernels/score/visible_keys.h"
#include "kernels/steps/prepare_backward_params.h"

namespace strobe::steps {

constexpr int kPrepareBlocks = 5;  // CTAs of a multiprocessor: the most whose registers do not spill

/// Rows of one head of a sequence: how many are in use, how many the workspaces have for it and up to the next
/// sequence, and where row 0 of each lies.
struct PreparedRows {
  int used, count;
  const unsigned short* o;
  const unsigned short* d_o;
  const float* lse;
  const float* d_lse;
  long long at;  // in lse_log2 and d_sum
};

template <PrepareBackwardConfig C>
__device__ __forceinline__ PreparedRows prepared_rows(const PrepareBackwardParams& params, int sequence, int head) {
  const SequenceParams& sequences = params.sequences;
  const score::SequenceRows q = score::query_rows<ScoreRule{.varlen = C.varlen}>(sequences, sequence);
  const long long batch = C.varlen && sequences.cu_seqlens_q != nullptr ? 0 : sequence;
  const int block =
      C.varlen ? score::first_query_block(sequences, sequence, params.block_m) : sequence * params.m_blocks;
  int blocks = params.m_blocks;
  if constexpr (C.varlen) {
    blocks = sequence + 1 == sequences.sequences
                 ? params.query_blocks - block
                 : score::first_query_block(sequences, sequence + 1, params.block_m) - block;
  }
  return {.used = q.used,
          .count = blocks * params.block_m,
          .o = params.o.row(batch, q.start, head),
          .d_o = params.d_o.row(batch, q.start, head),
          .lse = params.lse + batch * params.lse_batch_stride + head * params.lse_head_stride + q.start,
          .d_lse = params.d_lse == nullptr
                       ? nullptr
                       : params.d_lse + batch * params.d_lse_batch_stride + head * params.d_lse_head_stride + q.start,
          .at = (static_cast<long long>(head) * params.query_blocks + block) * params.block_m};
}

template <Element element>
__device__ __forceinline__ float dot(const uint4& a, const uint4& b, float sum) {
  const unsigned x[4] = {a.x, a.y, a.z, a.w};
  const unsigned y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 u = to_floats<element>(x[i]);
    const float2 v = to_floats<element>(y[i]);
    sum = __fmaf_rn(u.x, v.x, sum);
    sum = __fmaf_rn(u.y, v.y, sum);
  }
  return sum;
}

constexpr int kStoringThreads = 4;  // of a row: one for each number of store_row()

/// The numbers of one row, of which this thread stores number `which`.
template <Element element>
__device__ __forceinline__ void store_row(const PrepareBackwardParams& params, const PreparedRows& rows, int row,
                                          float sum, int which) {
  constexpr float kInfinity = -kMinusInfinity;
  float lse_log2 = kInfinity;
  if (row < rows.used) {
    const float lse = rows.lse[row];
    if (rows.d_lse != nullptr) {
      sum -= rows.d_lse[row];
    }
    lse_log2 = lse == -kInfinity ? kInfinity : lse * kLog2E;
  }
  const float d = lse_log2 == kInfinity ? 0.0F : sum;
  const long long at = rows.at + row;
  if (which < 2) {
    (which == 0 ? params.lse_log2 : params.d_sum)[at] = which == 0 ? lse_log2 : d;
    return;
  }
  auto* parts = static_cast<uint4*>(which == 2 ? params.lse_split : params.d_split);
  if (parts != nullptr) {
    constexpr float kLeast = -1.0e38F;  // -inf has no parts; NaN stays NaN
    float score = (params.lse_shift - lse_log2) * params.lse_factor;
    score = score < kLeast ? kLeast : score;
    parts[at] = split<element>(which == 2 ? score : -d);
  }
}

/// rows_per_block rows from `first` on.
template <PrepareBackwardConfig C>
__device__ __forceinline__ void prepare_group(const PrepareBackwardParams& params, const PreparedRows& rows,
                                              int first) {
  constexpr int kRows = kPrepareThreads / C.threads_per_row;
  const int lane = threadIdx.x % C.threads_per_row;
  uint4 o[kPrepareRowsPerThread];
  uint4 d_o[kPrepareRowsPerThread];
#pragma unroll
  for (int i = 0; i < kPrepareRowsPerThread; ++i) {
    const int row = first + threadIdx.x / C.threads_per_row + i * kRows;
    o[i] = d_o[i] = make_uint4(0, 0, 0, 0);
    if (row < rows.used && lane < params.head_dim_v / 8) {
      o[i] = reinterpret_cast<const uint4*>(rows.o + row * params.o.row_stride)[lane];
      d_o[i] = reinterpret_cast<const uint4*>(rows.d_o + row * params.d_o.row_stride)[lane];
    }
  }
#pragma unroll
  for (int i = 0; i < kPrepareRowsPerThread; ++i) {
    const int row = first + threadIdx.x / C.threads_per_row + i * kRows;
    float sum = dot<C.element>(o[i], d_o[i], 0.0F);
#pragma unroll
    for (int distance = C.threads_per_row / 2; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(0xffffffffU, sum, distance);
    }
    if (lane < kStoringThreads && row < rows.count) {
      store_row<C.element>(params, rows, row, sum, lane);
    }
  }
}

/// Grid: prepare_groups * heads * sequences.
template <PrepareBackwardConfig C>
__global__ void __launch_bounds__(kPrepareThreads, C.varlen ? kPrepareBlocks - 1 : kPrepareBlocks)
    prepare_backward(const __grid_constant__ PrepareBackwardParams params) {
  wait_for_previous_grid();  // O and dO may be the kernel's before
  launch_next_grid();
  const long long step = static_cast<long long>(gridDim.x) * kPrepareThreads;
  for (long long i = static_cast<long long>(blockIdx.x) * kPrepareThreads + threadIdx.x; i < params.zeros_16_bytes;
       i += step) {
    static_cast<uint4*>(params.zeros)[i] = make_uint4(0, 0, 0, 0);
  }
  const int groups = prepare_groups(C, params.m_blocks, params.block_m);
  const int flat = blockIdx.x / groups;
  const int sequence = flat / params.heads;
  const PreparedRows rows = prepared_rows<C>(params, sequence, flat - sequence * params.heads);
  int first = (blockIdx.x - flat * groups) * rows_per_block(C);
  do {  // once, but for what the workspaces have behind a packed sequence
    prepare_group<C>(params, rows, first);
    first += groups * rows_per_block(C);
  } while (C.varlen && first < rows.count);
}

}  // namespace strobe::steps
