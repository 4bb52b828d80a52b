// SPDX-License-Identifier: Apache-2.0
// Before a backward: D = rowsum(dO O), less the gradient of LSE, and LSE in powers of two, for every row of whole
// blocks; and zeros where dQ will be summed. One group of threads a row, 16 bytes a thread and turn.
#pragma once

#include "kernels/math/constants.h"
#include "kernels/math/element.h"
#include "kernels/math/rows.h"

namespace strobe::steps {

struct PrepareBackwardParams {
  Rows o, d_o;
  const float* lse;
  long long lse_batch_stride, lse_head_stride;
  const float* d_lse;  // null: none; strides as those of LSE

  float* lse_log2;  // [batch, heads, rows]
  float* d_sum;
  uint4* zeros;  // null: none
  long long zeros_16_bytes;

  int heads, seqlen, rows;  // rows: of one head, rounded up
  int head_dim_v;
};

struct PrepareBackwardConfig {
  Element element = Element::bf16;
  int threads_per_row = 16;  // a power of two up to 32, at least head_dim_v / 8

  bool operator==(const PrepareBackwardConfig&) const = default;
};

constexpr int kPrepareThreads = 256;
constexpr int kPrepareRowsPerThread = 4;  // so many are on their way at once

constexpr int rows_per_block(const PrepareBackwardConfig& c) {
  return kPrepareThreads / c.threads_per_row * kPrepareRowsPerThread;
}

template <Element element>
__device__ __forceinline__ float2 to_floats(unsigned pair) {
  if constexpr (element == Element::bf16) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000U)};
  } else {
    float2 both;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(both.x), "=f"(both.y)
        : "r"(pair));
    return both;
  }
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

/// The numbers of one row, by the thread that holds its sum.
__device__ __forceinline__ void store_row(const PrepareBackwardParams& params, int batch, int head, int row,
                                          float sum) {
  constexpr float kInfinity = -kMinusInfinity;
  float lse_log2 = kInfinity;
  if (row < params.seqlen) {
    const long long at = batch * params.lse_batch_stride + head * params.lse_head_stride + row;
    const float lse = params.lse[at];
    if (params.d_lse != nullptr) {
      sum -= params.d_lse[at];
    }
    lse_log2 = lse == -kInfinity ? kInfinity : lse * kLog2E;
  }
  const long long at = (static_cast<long long>(batch) * params.heads + head) * params.rows + row;
  params.lse_log2[at] = lse_log2;
  params.d_sum[at] = lse_log2 == kInfinity ? 0.0F : sum;
}

/// Grid: {row groups, heads, batch}.
template <PrepareBackwardConfig C>
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_backward(const __grid_constant__ PrepareBackwardParams params) {
  constexpr int kRows = kPrepareThreads / C.threads_per_row;
  asm volatile("griddepcontrol.wait;\n" ::: "memory");  // O and dO may be the kernel's before
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  const int lane = threadIdx.x % C.threads_per_row;
  const int first = blockIdx.x * rows_per_block(C) + threadIdx.x / C.threads_per_row;
  uint4 o[kPrepareRowsPerThread];
  uint4 d_o[kPrepareRowsPerThread];
#pragma unroll
  for (int i = 0; i < kPrepareRowsPerThread; ++i) {
    const int row = first + i * kRows;
    o[i] = d_o[i] = make_uint4(0, 0, 0, 0);
    if (row < params.seqlen && lane < params.head_dim_v / 8) {
      o[i] = reinterpret_cast<const uint4*>(params.o.row(batch, row, head))[lane];
      d_o[i] = reinterpret_cast<const uint4*>(params.d_o.row(batch, row, head))[lane];
    }
  }
#pragma unroll
  for (int i = 0; i < kPrepareRowsPerThread; ++i) {
    const int row = first + i * kRows;
    float sum = dot<C.element>(o[i], d_o[i], 0.0F);
#pragma unroll
    for (int distance = C.threads_per_row / 2; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(0xffffffffU, sum, distance);
    }
    if (lane == 0 && row < params.rows) {
      store_row(params, batch, head, row, sum);
    }
  }
  const long long block = (static_cast<long long>(batch) * gridDim.y + head) * gridDim.x + blockIdx.x;
  const long long blocks = static_cast<long long>(gridDim.x) * gridDim.y * gridDim.z;
  for (long long i = block * kPrepareThreads + threadIdx.x; i < params.zeros_16_bytes; i += blocks * kPrepareThreads) {
    params.zeros[i] = make_uint4(0, 0, 0, 0);
  }
}

}  // namespace strobe::steps
