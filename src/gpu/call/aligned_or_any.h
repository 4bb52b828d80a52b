// SPDX-License-Identifier: Apache-2.0
// Calls with a bias that a kernel copies 16 bytes at a time, where its memory lets it.
#pragma once

#include <optional>

#include "engine/engine.h"

namespace strobe::gpu {

/// Whether the address and the strides of a bias are multiples of 16 bytes.
bool bias_is_aligned(const ConstTensorView& bias);

/// A call that runs `aligned` for an aligned bias, and else `any`; an error where one of them is.
engine::PlannedCallResult aligned_or_any(const engine::PlannedCallResult& aligned,
                                         const engine::PlannedCallResult& any);

/// plan(any), and where there is a variant for an aligned bias, both.
template <class Config, class Plan>
engine::PlannedCallResult plan_aligned_or_any(const std::optional<Config>& aligned, const Config& any,
                                              const Plan& plan) {
  if (!aligned.has_value()) return plan(any);
  const engine::PlannedCallResult call = plan(any);
  return call.ok() ? aligned_or_any(plan(*aligned), call) : call;
}

}  // namespace strobe::gpu
