// SPDX-License-Identifier: Apache-2.0
// The simplest quantisation of some tensors whose error is near the least.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "eight_bit_calls.h"
#include "strobe/quantize.h"

namespace strobe::program {

/// A quantisation, and the root mean square of its error.
struct MeasuredQuantization {
  QuantizeOptions options;
  double rmse = 0.0;
};

/// How many times the least error of its element a simpler quantisation may have.
inline constexpr double kNeedTolerance = 1.1;

/// The most calls that simplest() makes.
inline constexpr int kSimplestCalls = 15;

/// From `best`, the most exact of its element, drops one ingredient after another, the dearest first, as long as the
/// error stays within kNeedTolerance of best's: scales for rows of V, rotations, the mean of K, fine scales of Q and K.
/// step() is called after each call.
Result<MeasuredQuantization> simplest(EightBitCalls& calls, const MeasuredQuantization& best,
                                      const std::function<void()>& step);

/// "tensor", "head", "block", "group" or "row".
const char* name_of_unit(ScaleUnit unit);

}  // namespace strobe::program
