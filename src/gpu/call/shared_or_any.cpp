// SPDX-License-Identifier: Apache-2.0
#include "gpu/call/shared_or_any.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace strobe::gpu {
namespace {

/// Whether all of a tensor lies within what 32 bits count in pieces of 16 bytes.
bool is_counted(const ConstTensorView& tensor) {
  constexpr std::int64_t kMostElements = std::int64_t{1} << 34;  // less a row
  std::int64_t last = 0;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(tensor.rank); ++axis) {
    const std::int64_t steps = tensor.shape[axis] - 1;
    const std::int64_t stride = tensor.strides[axis];
    if (steps <= 0) continue;
    if (stride < 0) return false;
    if (stride > 0 && steps > (kMostElements - last) / stride) return false;
    last += steps * stride;
  }
  return true;
}

class SharedOrAnyCall final : public engine::PlannedCall {
 public:
  using Part = std::shared_ptr<const engine::PlannedCall>;
  SharedOrAnyCall(Part shared, Part any) : shared_(std::move(shared)), any_(std::move(any)) {}

  std::size_t workspace_bytes() const override { return std::max(shared_->workspace_bytes(), any_->workspace_bytes()); }
  DType probability_dtype() const override { return any_->probability_dtype(); }
  std::string_view kernels() const override { return any_->kernels(); }
  std::string explain() const override {
    return any_->explain() + "where v is a view of k, or with qv both are within 64 GiB\n" + shared_->explain();
  }

  Status run(const ForwardArguments& arguments, const Execution& execution) const override {
    return (may_share(arguments) ? *shared_ : *any_).run(arguments, execution);
  }

 private:
  static bool may_share(const ForwardArguments& arguments) {
    if (arguments.qv.given()) return is_counted(arguments.k) && is_counted(arguments.v);
    return values_are_keys(arguments);
  }

  Part shared_, any_;
};

}  // namespace

bool values_are_keys(const ForwardArguments& arguments) {
  const ConstTensorView& k = arguments.k;
  const ConstTensorView& v = arguments.v;
  if (k.data != v.data || k.rank != v.rank || k.dtype != v.dtype) return false;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(k.rank); ++axis) {
    const bool is_column = axis + 1 == static_cast<std::size_t>(k.rank);
    if (!is_column && k.shape[axis] != v.shape[axis]) return false;
    if (k.shape[axis] > 1 && k.strides[axis] != v.strides[axis]) return false;
  }
  return is_counted(k);
}

engine::PlannedCallResult shared_or_any(const engine::PlannedCallResult& shared, const engine::PlannedCallResult& any) {
  if (!shared.ok()) return shared.status();
  if (!any.ok()) return any.status();
  return engine::make_planned<SharedOrAnyCall>(*shared, *any);
}

}  // namespace strobe::gpu
