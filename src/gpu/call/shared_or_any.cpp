// SPDX-License-Identifier: Apache-2.0
#include "gpu/call/shared_or_any.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace strobe::gpu {
namespace {

class SharedOrAnyCall final : public engine::PlannedCall {
 public:
  using Part = std::shared_ptr<const engine::PlannedCall>;
  SharedOrAnyCall(Part shared, Part any) : shared_(std::move(shared)), any_(std::move(any)) {}

  std::size_t workspace_bytes() const override { return std::max(shared_->workspace_bytes(), any_->workspace_bytes()); }
  DType probability_dtype() const override { return any_->probability_dtype(); }
  std::string_view kernels() const override { return any_->kernels(); }
  std::string explain() const override { return any_->explain() + "where v is a view of k\n" + shared_->explain(); }

  Status run(const ForwardArguments& arguments, const Execution& execution) const override {
    return (values_are_keys(arguments) ? *shared_ : *any_).run(arguments, execution);
  }

 private:
  Part shared_, any_;
};

}  // namespace

bool values_are_keys(const ForwardArguments& arguments) {
  constexpr std::int64_t kMostElements = std::int64_t{1} << 34;  // less a row
  const ConstTensorView& k = arguments.k;
  const ConstTensorView& v = arguments.v;
  if (k.data != v.data || k.rank != v.rank || k.dtype != v.dtype) return false;
  std::int64_t last = 0;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(k.rank); ++axis) {
    const bool is_column = axis + 1 == static_cast<std::size_t>(k.rank);
    if (!is_column && k.shape[axis] != v.shape[axis]) return false;
    if (k.shape[axis] <= 1) continue;
    if (k.strides[axis] != v.strides[axis] || k.strides[axis] < 0) return false;
    const std::int64_t steps = k.shape[axis] - 1;
    if (k.strides[axis] > 0 && steps > (kMostElements - last) / k.strides[axis]) return false;
    last += steps * k.strides[axis];
  }
  return true;
}

engine::PlannedCallResult shared_or_any(const engine::PlannedCallResult& shared, const engine::PlannedCallResult& any) {
  if (!shared.ok()) return shared.status();
  if (!any.ok()) return any.status();
  return engine::make_planned<SharedOrAnyCall>(*shared, *any);
}

}  // namespace strobe::gpu
