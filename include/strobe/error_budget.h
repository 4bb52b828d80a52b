// SPDX-License-Identifier: Apache-2.0
// How to quantise Q, K and V so that O keeps to an error that the caller names.
//
// The model behind it, what it assumes and how far it is from what is measured: docs/eight-bit.md.
#pragma once

#include <cstdint>
#include <string>

#include "strobe/attention.h"
#include "strobe/export.h"
#include "strobe/quantize.h"
#include "strobe/status.h"
#include "strobe/tensor.h"

namespace strobe {

/// @experimental
enum class QuantizationMode : std::uint8_t {
  automatic,  // the cheapest that keeps to the budget
  fast,       // float8_e4m3 with scales by blocks
  accurate,   // int8, each row of V with a scale of its own
};

/// What 8 bits may cost. Bounds of 0 are none. @experimental
struct ErrorBudget {
  QuantizationMode mode = QuantizationMode::automatic;
  double max_rmse = 0.0;   // of O against exact attention, over all its elements: an estimate keeps to it
  double max_error = 0.0;  // of any element of O: guaranteed, and for that far above what is seen
};

/// What a quantisation costs, and how it was chosen. @experimental
struct QuantizationPlan {
  QuantizeOptions options{};      // for quantize()
  double rmse = 0.0;              // of O, estimated, with the margin that is added to it
  double error_bound = 0.0;       // of any element of O; infinite where the tensors were not read
  bool measured = false;          // whether the tensors were read; otherwise they were taken to be normal
  std::int64_t keys_per_sum = 0;  // whose products are summed as the hardware does, before they join a float32 sum
  std::string explanation{};      // a few lines for a reader
};

/// Chooses the options of a quantisation of q, k and v, laid out as in quantize(), for a forward with `options`.
/// Tensors in host memory are read: norms, scales and largest elements of every row, and the exact probabilities of up
/// to 256 queries, drawn by `seed`. Where data pointers are null, or on a GPU, all elements are taken to be independent
/// and N(0, 1), which says nothing of real tensors: give what calls are like from host memory, once. The same holds for
/// more than 2^20 rows that a stride of 0 makes of one.
///
/// Unsupported where nothing keeps to the budget; the message says how near one comes. @experimental
STROBE_API Result<QuantizationPlan> plan_quantization(const ConstTensorView& q, const ConstTensorView& k,
                                                      const ConstTensorView& v, const ErrorBudget& budget,
                                                      const AttentionOptions& options = {}, std::uint64_t seed = 0);

}  // namespace strobe
