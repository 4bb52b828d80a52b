// SPDX-License-Identifier: Apache-2.0
// Log-length scaling: the scores of a sequence that has n keys are multiplied by max(1, log(n) / log(n0)). The host
// folds the factor into the scale where all sequences have as many keys; else kernels multiply the products by it.
//
// Forward: log_length_factor(), of which apply.h makes product_factor(). Derivative: the same factor, in
// gradient_scale(). The parameters are plain C++ without std headers, shared by host and device.
#pragma once

#ifdef __CUDACC_RTC__
#include "kernels/ptx/arithmetic.h"
#endif

namespace strobe {

/// Log-length rules.
struct LogLengthParams {
  float inverse_log2;  // 1 / log2(n0)
};

#ifdef __CUDACC_RTC__

namespace score {

/// Within four roundings of the factor; 1 of no keys.
__device__ __forceinline__ float log_length_factor(const LogLengthParams& params, int keys) {
  return fmaxf(1.0F, ptx::lg2_approx(static_cast<float>(keys)) * params.inverse_log2);
}

}  // namespace score

#endif

}  // namespace strobe
