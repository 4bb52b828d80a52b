// SPDX-License-Identifier: Apache-2.0
// What standard attention does to one row of S, P or dS in memory, vectorised for the machine it runs on.
#pragma once

#include <cstdint>

#include "strobe/tensor.h"

namespace strobe::bench {

/// The keys [begin, end) that a query sees.
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Rounds every element to the nearest value that `dtype` (float32, float16 or bfloat16) can hold.
void round_row(DType dtype, float* row, std::int64_t length);

/// s -> softcap * tanh(s / softcap).
void softcap_row(float softcap, float* row, std::int64_t length);

/// p = softmax over the visible part of s, and 0 elsewhere. Returns the natural logarithm of the sum of exponentials,
/// -inf when nothing is visible.
float softmax_row(const float* s, KeyRange visible, float* p, std::int64_t length);

/// p = exp(s - lse) over the visible part, and 0 elsewhere: softmax again, from its saved log-sum-exp.
void probability_row(const float* s, float lse, KeyRange visible, float* p, std::int64_t length);

/// ds = p * (dp - delta), the gradient of softmax; ds may be dp.
void softmax_gradient_row(const float* p, const float* dp, float delta, float* ds, std::int64_t length);

/// ds *= 1 - (s / softcap)^2, the gradient of softcap at its result s.
void softcap_gradient_row(float softcap, const float* s, float* ds, std::int64_t length);

}  // namespace strobe::bench
