// SPDX-License-Identifier: Apache-2.0
// The tensors of one attention call, owned; and ways to fill them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "call/tensors.h"
#include "flags.h"
#include "io/host_tensor.h"
#include "modifiers.h"
#include "strobe/attention.h"
#include "strobe/plan.h"

namespace strobe::program {

/// Batched layout, contiguous. A pass's outputs are there after allocate_outputs().
struct AttentionTensors {
  io::HostTensor q, k, v, d_o;
  Modifiers modifiers;
  RandomState random;
  // Of 8-bit q, k and v (strobe/quantize.h).
  io::HostTensor q_descale, k_descale, v_descale, q_shift;
  Rotation v_rotation;
  DType output = DType::float32;
  io::HostTensor o, lse, max_logits, dq, dk, dv, d_bias, d_sink;
  std::vector<io::HostTensor> d_captures;  // one for each capture, without axes where the score has no gradient of it
  std::vector<TensorView> d_capture_views;

  /// Outputs for both passes in the shapes that the inputs imply; q and v have rank 4. max_logits only if wanted, lse
  /// only of a softmax, d_bias, d_sink and d_captures only where there is a bias, a sink, or a score that reads
  /// captures.
  void allocate_outputs(bool wants_max_logits = false, Normalization normalize = Normalization::softmax);

  ForwardArguments forward();
  BackwardArguments backward();
};

/// A plan of the same call with every tensor said to be on `device`: planning reads no data.
template <class Arguments>
Result<Plan> plan_on(const Device& device, Arguments arguments, const AttentionOptions& options,
                     const Execution& execution) {
  const auto place = [&device](auto& view) { view.device = device; };
  for_each_tensor(arguments, [&place](const CallTensor&, auto& view) { place(view); });
  const auto place_all = [&place](auto& list, auto& views) {
    views.assign(list.begin(), list.end());
    std::ranges::for_each(views, place);
    list = views;
  };
  std::vector<ConstTensorView> captures;
  std::vector<TensorView> d_captures;
  place_all(arguments.modifiers.captures, captures);
  if constexpr (requires { arguments.d_captures; }) place_all(arguments.d_captures, d_captures);
  return make_plan(arguments, options, execution);
}

/// Arguments for planning, from shapes alone; `modifiers` lend theirs.
ForwardArguments planned_forward(const Shape& shape, DType dtype, const Modifiers& modifiers = {},
                                 Normalization normalize = Normalization::softmax);
BackwardArguments planned_backward(const Shape& shape, DType dtype, const Modifiers& modifiers = {},
                                   Normalization normalize = Normalization::softmax);

enum class Distribution {
  normal,    // N(0, 1)
  outliers,  // N(0, 1) + N(0, 100) * Bernoulli(0.001), variance 100: FlashAttention-3 (2024), section 4.3
};

/// q, k and v from `distribution`, d_o from N(0, 1), and zeroed outputs. An element depends on seed, tensor and
/// position alone, so that every machine draws the same.
AttentionTensors random_tensors(const Shape& shape, DType dtype, Distribution distribution, std::uint64_t seed);

/// q, k, v and d_o for measuring large calls: a million draws from N(0, 1), rounded to `dtype`, over and over; and
/// zeroed outputs.
AttentionTensors repeating_tensors(const Shape& shape, DType dtype);

/// Rounds to `dtype` (float32, float16 or bfloat16) through float32; int32 is left as it is.
io::HostTensor converted(const io::HostTensor& tensor, DType dtype);

}  // namespace strobe::program
