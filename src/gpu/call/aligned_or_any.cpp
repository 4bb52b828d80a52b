// SPDX-License-Identifier: Apache-2.0
#include "gpu/call/aligned_or_any.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/wrapped_call.h"
#include "gpu/params/rows.h"

namespace strobe::gpu {
namespace {

class AlignedOrAnyCall final : public engine::WrappedCall {
 public:
  using Part = std::shared_ptr<const engine::PlannedCall>;
  AlignedOrAnyCall(Part aligned, Part any) : WrappedCall(std::move(aligned)), any_(std::move(any)) {}

  std::size_t workspace_bytes() const override {
    return std::max(wrapped().workspace_bytes(), any_->workspace_bytes());
  }

  Status run(const ForwardArguments& arguments, const Execution& execution) const override {
    return part(arguments.modifiers.bias).run(arguments, execution);
  }
  Status run(const BackwardArguments& arguments, const Execution& execution) const override {
    return part(arguments.modifiers.bias).run(arguments, execution);
  }

 private:
  const engine::PlannedCall& part(const ConstTensorView& bias) const {
    return bias_is_aligned(bias) ? wrapped() : *any_;
  }

  Part any_;
};

}  // namespace

bool bias_is_aligned(const ConstTensorView& bias) {
  constexpr std::size_t kOuterAxes = 3;  // all but the keys
  const std::int64_t unit = access_elements(bias.dtype);
  bool aligned = reinterpret_cast<std::uintptr_t>(bias.data) % static_cast<std::uintptr_t>(kAccessBytes) == 0;
  for (std::size_t axis = 0; axis < kOuterAxes; ++axis) {
    const std::int64_t stride = bias.strides[axis];
    aligned = aligned && (bias.shape[axis] <= 1 || (stride >= 0 && stride % unit == 0));
  }
  return aligned;
}

engine::PlannedCallResult aligned_or_any(const engine::PlannedCallResult& aligned,
                                         const engine::PlannedCallResult& any) {
  if (!aligned.ok()) return aligned.status();
  if (!any.ok()) return any.status();
  return engine::make_planned<AlignedOrAnyCall>(*aligned, *any);
}

}  // namespace strobe::gpu
