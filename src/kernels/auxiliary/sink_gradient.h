// SPDX-License-Identifier: Apache-2.0
// The gradient of the sinks, from what prepare_backward.h computed for every row: a sink is a logit that joins its
// head's LSEs and has no value, so dP = 0, and with P = exp(sink - LSE) its gradient is the sum of -P D over the rows.
// D is less LSE's own gradient, which the sink takes its share of, too. One CTA a head, always in the same order.
#pragma once

#include "kernels/auxiliary/sink_gradient_params.h"
#include "kernels/math/constants.h"
#include "kernels/ptx/arithmetic.h"
#include "kernels/ptx/grid.h"
#include "kernels/score/modifiers/sink.h"

namespace strobe::auxiliary {

/// Grid: heads.
__global__ void __launch_bounds__(kSinkThreads) sink_gradient(const __grid_constant__ SinkGradientParams params) {
  constexpr int kWarp = 32;
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  __shared__ float sums[kSinkThreads / kWarp];
  const long long head = blockIdx.x;
  const float sink_log2 = score::sink_log2(params.sink, head);
  const auto* lse_log2 = reinterpret_cast<const float4*>(params.lse_log2 + head * params.rows);
  const auto* row_max = reinterpret_cast<const float4*>(params.row_max + head * params.rows);
  const auto* d_sum = reinterpret_cast<const float4*>(params.d_sum + head * params.rows);
  float sum = 0.0F;
  const auto add = [&](float lse, float maximum, float d) {
    const float exponent = __fmaf_rn(maximum, -params.score_scale, sink_log2) - lse;
    sum = __fmaf_rn(ptx::ex2_approx(exponent), -d, sum);
  };
  if (sink_log2 != kMinusInfinity) {  // which takes no part, whatever D is
#pragma unroll 4
    for (long long i = threadIdx.x; i < params.rows / 4; i += kSinkThreads) {
      const float4 lse = lse_log2[i];
      const float4 highest = row_max[i];
      const float4 d = d_sum[i];
      add(lse.x, highest.x, d.x);
      add(lse.y, highest.y, d.y);
      add(lse.z, highest.z, d.z);
      add(lse.w, highest.w, d.w);
    }
  }
  const auto sum_of_warp = [](float x) {
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      x += __shfl_xor_sync(0xffffffffU, x, distance);
    }
    return x;
  };
  sum = sum_of_warp(sum);
  if (threadIdx.x % kWarp == 0) {
    sums[threadIdx.x / kWarp] = sum;
  }
  __syncthreads();
  if (threadIdx.x < kWarp) {
    sum = sum_of_warp(sums[threadIdx.x]);
    if (threadIdx.x == 0) {
      params.d_sink[head] = sum;
    }
  }
}

}  // namespace strobe::auxiliary
