// SPDX-License-Identifier: Apache-2.0
// Before a backward: D = rowsum(dO O), less the gradient of LSE, and LSE in powers of two, for every row of whole
// blocks; and zeros where dQ will be summed. One group of threads a row, 16 bytes a thread and turn. Of rows of a large
// LSE, auxiliary/large_rows.h has left numbers in its place.
#pragma once

#include "kernels/auxiliary/prepared_rows.h"
#include "kernels/math/constants.h"
#include "kernels/math/hi_lo.h"
#include "kernels/ptx/grid.h"

namespace strobe::auxiliary {

/// CTAs of a multiprocessor: the most whose registers do not spill.
constexpr int prepare_blocks(const PrepareBackwardConfig& c) {
  if (!c.varlen) return 5;
  return c.two_chunks && c.element != Element::fp32 ? 3 : 4;
}

template <Element element>
__device__ __forceinline__ float dot(const uint4& a, const uint4& b, float sum) {
  const unsigned x[4] = {a.x, a.y, a.z, a.w};
  const unsigned y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (element == Element::fp32) {
      sum = __fmaf_rn(__uint_as_float(x[i]), __uint_as_float(y[i]), sum);
    } else {
      const float2 u = to_floats<element>(x[i]);
      const float2 v = to_floats<element>(y[i]);
      sum = __fmaf_rn(u.x, v.x, sum);
      sum = __fmaf_rn(u.y, v.y, sum);
    }
  }
  return sum;
}

constexpr int kStoringThreads = 4;  // of a row: one for each number of store_row()

/// The numbers of one row, of which this thread stores number `which`.
template <Element element>
__device__ __forceinline__ void store_row(const PrepareBackwardParams& params, const PreparedRows& rows, int row,
                                          float sum, int which) {
  constexpr float kInfinity = -kMinusInfinity;
  const long long at = rows.at + row;
  float lse_log2 = kInfinity;
  float row_max = 0.0F;
  if (row < rows.used) {
    const float lse = rows.lse[row];
    if (rows.d_lse != nullptr) {
      sum -= rows.d_lse[row];
    }
    lse_log2 = lse == -kInfinity ? kInfinity : lse * kLog2E;
    if (is_large(lse)) {
      lse_log2 = params.lse_log2[at];
      row_max = params.row_max[at];
    }
  }
  const float d = lse_log2 == kInfinity ? 0.0F : sum;
  if (which == 0) {
    params.lse_log2[at] = lse_log2;
    params.row_max[at] = row_max;
    return;
  }
  if (which == 1) {
    params.d_sum[at] = d;
    return;
  }
  if constexpr (element != Element::fp32) {  // which only kernels without parts take
    auto* parts = static_cast<uint4*>(which == 2 ? params.lse_hi_lo : params.d_hi_lo);
    if (parts != nullptr) {
      constexpr float kLeast = -1.0e38F;  // -inf has no parts; NaN stays NaN
      float score = (params.lse_shift - lse_log2) * params.lse_factor;
      score = score < kLeast ? kLeast : score;
      if (row_max != 0.0F) {  // the backward subtracts the rest
        score = hi_lo_holds_any<element> ? -row_max : 0.0F;
      }
      parts[at] = hi_lo<element>(which == 2 ? score : -d);
    }
  }
}

/// Rows of a call without a softmax, of which nothing is known.
template <PrepareBackwardConfig C>
__device__ __forceinline__ void clear_group(const PrepareBackwardParams& params, const PreparedRows& rows, int first) {
  for (int row = first + threadIdx.x; row < min(first + rows_per_block(C), rows.count); row += kPrepareThreads) {
    params.lse_log2[rows.at + row] = row < rows.used ? 0.0F : -kMinusInfinity;
    params.row_max[rows.at + row] = 0.0F;
    params.d_sum[rows.at + row] = 0.0F;
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
    if (row < rows.used && lane < params.backward.head_dim_v * halves_of(C.element) / 8) {
      o[i] = reinterpret_cast<const uint4*>(rows.o + row * params.o.row_stride)[lane];
      d_o[i] = reinterpret_cast<const uint4*>(rows.d_o + row * params.backward.d_o.row_stride)[lane];
    }
  }
  ptx::griddepcontrol_wait();  // large rows' numbers; those who wrote O and dO ended before that grid began
#pragma unroll
  for (int i = 0; i < kPrepareRowsPerThread; ++i) {
    const int row = first + threadIdx.x / C.threads_per_row + i * kRows;
    float sum = dot<C.element>(o[i], d_o[i], 0.0F);
    if constexpr (C.two_chunks) {
      const int chunk = lane + C.threads_per_row;
      if (row < rows.used && chunk < params.backward.head_dim_v * halves_of(C.element) / 8) {
        sum =
            dot<C.element>(reinterpret_cast<const uint4*>(rows.o + row * params.o.row_stride)[chunk],
                           reinterpret_cast<const uint4*>(rows.d_o + row * params.backward.d_o.row_stride)[chunk], sum);
      }
    }
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
__global__ void __launch_bounds__(kPrepareThreads, prepare_blocks(C))
    prepare_backward(const __grid_constant__ PrepareBackwardParams params) {
  ptx::griddepcontrol_launch_dependents();
  const long long step = static_cast<long long>(gridDim.x) * kPrepareThreads;
  for (long long i = static_cast<long long>(blockIdx.x) * kPrepareThreads + threadIdx.x; i < params.zeros_16_bytes;
       i += step) {
    static_cast<uint4*>(params.zeros)[i] = make_uint4(0, 0, 0, 0);
  }
  const int groups = prepare_groups(C, params.backward.m_blocks, params.block_m);
  const int flat = blockIdx.x / groups;
  const int sequence = flat / params.backward.heads;
  const PreparedRows rows = prepared_rows<C>(params, sequence, flat - sequence * params.backward.heads);
  int first = (blockIdx.x - flat * groups) * rows_per_block(C);
  do {  // once, but for what the workspaces have behind a packed sequence
    if constexpr (C.normalized) {
      prepare_group<C>(params, rows, first);
    } else {
      clear_group<C>(params, rows, first);
    }
    first += groups * rows_per_block(C);
  } while (C.varlen && first < rows.count);
}

}  // namespace strobe::auxiliary
