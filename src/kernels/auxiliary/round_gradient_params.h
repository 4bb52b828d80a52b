// SPDX-License-Identifier: Apache-2.0
// What the host hands to the kernel that rounds exact sums. Plain C++ without std headers, shared by host and device.
#pragma once

#include "kernels/expression/captures.h"

namespace strobe::auxiliary {

struct RoundGradientParams {
  const unsigned long long* sums;    // kernels/math/exact_sum.h, one for each element in order
  expression::CaptureView gradient;  // float32
  int rank;
  long long elements;
};

constexpr int kRoundGradientThreads = 256;

}  // namespace strobe::auxiliary
