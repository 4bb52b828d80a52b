// SPDX-License-Identifier: Apache-2.0
// What the host hands to the step that sums the gradient of sinks. Plain C++ without std headers, shared by host and
// device.
#pragma once

namespace strobe::auxiliary {

struct SinkGradientParams {
  const float* lse_log2;  // [heads, rows]; +inf where there is no row
  const float* row_max;   // likewise, see BackwardParams
  float score_scale;      // by which scores of row_max become exponents of 2
  const float* d_sum;     // likewise; 0 where there is no row
  const float* sink;      // [heads]
  float* d_sink;          // [heads]
  long long rows;         // of one head: query_blocks * block_m, a multiple of 4
};

constexpr int kSinkThreads = 1024;

}  // namespace strobe::auxiliary
