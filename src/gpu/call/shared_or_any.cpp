// SPDX-License-Identifier: Apache-2.0
#include "gpu/call/shared_or_any.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/wrapped_call.h"
#include "gpu/plan/supported.h"

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

/// What a call's pointers must be for the first of two plans, in words and as a function.
struct Condition {
  std::string_view text;
  bool (*holds)(const ForwardArguments& arguments);
};

class OneOfTwoCalls final : public engine::WrappedCall {
 public:
  using Part = std::shared_ptr<const engine::PlannedCall>;
  OneOfTwoCalls(Part special, Part any, Condition condition)
      : WrappedCall(std::move(any)), special_(std::move(special)), condition_(condition) {}

  std::size_t workspace_bytes() const override {
    return std::max(special_->workspace_bytes(), wrapped().workspace_bytes());
  }
  std::string explain() const override {
    return wrapped().explain() + std::string(condition_.text) + "\n" + special_->explain();
  }

  Status run(const ForwardArguments& arguments, const Execution& execution) const override {
    return (condition_.holds(arguments) ? *special_ : wrapped()).run(arguments, execution);
  }

 private:
  Part special_;
  Condition condition_;
};

engine::PlannedCallResult one_of_two(const engine::PlannedCallResult& special, const engine::PlannedCallResult& any,
                                     const Condition& condition) {
  if (!special.ok()) return special.status();
  if (!any.ok()) return any.status();
  return engine::make_planned<OneOfTwoCalls>(*special, *any, condition);
}

bool may_share(const ForwardArguments& arguments) {
  if (arguments.qv.given()) return is_counted(arguments.k) && is_counted(arguments.v);
  return values_are_keys(arguments);
}

/// Whether lanes may read eight bytes of a row at once.
bool has_whole_pieces(const ConstTensorView& k) {
  constexpr std::uintptr_t kPieceBytes = 8;
  const auto rows = std::span(k.strides).first(static_cast<std::size_t>(k.rank) - 1);
  return reinterpret_cast<std::uintptr_t>(k.data) % kPieceBytes == 0 &&
         std::ranges::all_of(rows, [](std::int64_t stride) { return stride % std::int64_t{kPieceBytes} == 0; });
}

bool rows_may_stay(const ForwardArguments& arguments) {
  return latent_rows_are_stored(arguments) && has_whole_pieces(arguments.k);
}

class RowsAlone final : public engine::WrappedCall {
 public:
  explicit RowsAlone(std::shared_ptr<const engine::PlannedCall> rows) : WrappedCall(std::move(rows)) {}

  using PlannedCall::run;
  Status run(const ForwardArguments& arguments, const Execution& execution) const override {
    if (rows_may_stay(arguments)) return wrapped().run(arguments, execution);
    return unsupported(
        "k and v are {} and too large to be converted first: the gpu engine takes v as a view of k, with k's scales "
        "and rows at multiples of 8 bytes; the cpu engine takes any",
        name_of(arguments.k.dtype));
  }
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

bool latent_rows_are_stored(const ForwardArguments& arguments) {
  const ConstTensorView& k = arguments.k_descale;
  const ConstTensorView& v = arguments.v_descale;
  return values_are_keys(arguments) && k.data == v.data && k.shape == v.shape && k.strides == v.strides;
}

engine::PlannedCallResult shared_or_any(const engine::PlannedCallResult& shared, const engine::PlannedCallResult& any) {
  return one_of_two(shared, any, {"where v is a view of k, or with qv both are within 64 GiB", may_share});
}

engine::PlannedCallResult rows_alone(const engine::PlannedCallResult& rows) {
  return rows.ok() ? engine::make_planned<RowsAlone>(*rows) : rows;
}

engine::PlannedCallResult rows_or_converted(const engine::PlannedCallResult& rows,
                                            const engine::PlannedCallResult& converted) {
  return one_of_two(rows, converted, {"where v is a view of k, and its scales are k's", rows_may_stay});
}

}  // namespace strobe::gpu
