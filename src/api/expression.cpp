// SPDX-License-Identifier: Apache-2.0
#include "api/expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>

#include "call/checked.h"
#include "expression/formula.h"

namespace strobe {

Result<ScoreFunction> ScoreFunction::parse(std::string_view score, std::string_view mask,
                                           std::vector<CaptureType> captures) {
  Result<std::shared_ptr<const expression::Formula>> formula = expression::Formula::parse(score, mask, captures);
  if (!formula.ok()) return formula.status();
  return ScoreFunction(std::move(*formula));
}

const std::vector<CaptureType>& ScoreFunction::captures() const { return formula_->captures(); }

std::string ScoreFunction::explain() const { return formula_->explain(); }

bool ScoreFunction::has_gradient(int capture) const {
  return std::ranges::any_of(formula_->reads(), [&](const expression::Read& read) { return read.capture == capture; });
}

bool ScoreFunction::keeps_hidden() const {
  const expression::Graph& graph = formula_->graph();
  const expression::Id slope = formula_->slope();
  return !formula_->has_score() || (graph.is_literal(slope) && graph[slope].value > 0.0);
}

namespace api {
namespace {

Checked elements_of(const ConstTensorView& view) {
  Checked elements = 1;
  for (int axis = 0; axis < view.rank; ++axis) elements = elements * view.shape[axis];
  return elements;
}

/// A capture of rank 0 comes as one element.
Status check_capture(const CaptureType& capture, const ConstTensorView& view, const Device& device) {
  const std::string name = fmt::format("capture `{}`", capture.name);
  const int rank = std::max(capture.rank, 1);
  if (!view.given()) return invalid("{} is not given", name);
  if (view.rank != rank || (capture.rank == 0 && view.shape[0] != 1)) {
    return invalid("{} has shape {}: the text gives it {} ind{}", name, shape_text(view), capture.rank,
                   capture.rank == 1 ? "ex" : "ices");
  }
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.shape[axis] < 0 || view.shape[axis] > std::numeric_limits<std::int32_t>::max()) {
      return invalid("{} has shape {}: extents must be from 0 to 2147483647", name, shape_text(view));
    }
  }
  return first_failure([&] { return check_memory({name, view}); },
                       [&] { return check_dtype({name, view}, capture.dtype, ", as the function was parsed for"); },
                       [&] { return check_device({name, view}, device); });
}

Status check_gradient(const CaptureType& capture, const ConstTensorView& of, const TensorView& view, bool read,
                      const Device& device) {
  const std::string name = fmt::format("the gradient of capture `{}`", capture.name);
  if (!read) return invalid("{} is given: the score does not read it as a real number", name);
  const NamedTensor gradient{name, view};
  if (view.rank != of.rank || !std::equal(view.shape.begin(), view.shape.begin() + view.rank, of.shape.begin())) {
    return invalid("{} has shape {}: it must be {}, as the capture is", name, shape_text(view), shape_text(of));
  }
  return first_failure([&] { return check_memory(gradient); },
                       [&] { return check_dtype(gradient, DType::float32, ": it is a sum over many scores"); },
                       [&] { return check_device(gradient, device); },
                       [&] { return check_distinct_elements(gradient); });
}

bool fits_32_bits(std::int64_t value) { return value == static_cast<std::int32_t>(value); }

/// Calls visit(offset, indices) of every row along the last axis, axes of which all elements are one taken once, until
/// it returns true.
template <class Visit>
bool any_row(const ConstTensorView& view, std::size_t axis, std::int64_t offset,
             std::array<std::int64_t, kMaxRank>& indices, const Visit& visit) {
  if (axis + 1 >= std::min<std::size_t>(view.rank, kMaxRank)) return visit(offset, indices);
  const std::int64_t extent = view.strides[axis] == 0 ? std::min<std::int64_t>(view.shape[axis], 1) : view.shape[axis];
  for (std::int64_t i = 0; i < extent; ++i) {
    indices[axis] = i;
    if (any_row(view, axis + 1, offset + i * view.strides[axis], indices, visit)) return true;
  }
  return false;
}

Status check_32_bits(const std::string& name, const ConstTensorView& view) {
  const auto* const data = static_cast<const std::int64_t*>(view.data);
  const auto last = static_cast<std::size_t>(view.rank - 1);
  const std::int64_t count = view.shape[last];
  const std::int64_t stride = view.strides[last];
  std::array<std::int64_t, kMaxRank> indices{};
  Status status;
  any_row(view, 0, 0, indices, [&](std::int64_t offset, std::array<std::int64_t, kMaxRank>& at) {
    int wrong = 0;
    for (std::int64_t i = 0; i < count; ++i) wrong |= fits_32_bits(data[offset + i * stride]) ? 0 : 1;
    if (wrong == 0) return false;
    at[last] = 0;
    while (fits_32_bits(data[offset + at[last] * stride])) ++at[last];
    std::string place;
    for (std::size_t axis = 0; axis <= last; ++axis) place += fmt::format("[{}]", at[axis]);
    status =
        invalid("capture `{}`{} is {}: integers of texts have 32 bits", name, place, data[offset + at[last] * stride]);
    return true;
  });
  return status;
}

}  // namespace

Status check_capture_values(const ScoreModifiers& given) {
  for (std::size_t i = 0; i < given.captures.size(); ++i) {
    if (given.captures[i].dtype != DType::int64) continue;
    Status status = check_32_bits(given.function->captures()[i].name, given.captures[i]);
    if (!status.ok()) return status;
  }
  return {};
}

Status read_expression(const ScoreModifiers& given, AttentionProblem& problem) {
  if (given.function == nullptr) {
    if (given.captures.empty()) return {};
    return invalid("captures are given without a function: give modifiers.function, too");
  }
  const std::vector<CaptureType>& captures = given.function->captures();
  if (given.captures.size() != captures.size()) {
    return invalid("{} captures are given: the function has {}", given.captures.size(), captures.size());
  }
  for (std::size_t i = 0; i < captures.size(); ++i) {
    if (Status status = check_capture(captures[i], given.captures[i], problem.device); !status.ok()) return status;
  }
  problem.expression.formula = given.function->formula();
  return {};
}

Status read_capture_gradients(const BackwardArguments& arguments, AttentionProblem& problem) {
  if (arguments.d_captures.empty()) return {};
  const ScoreModifiers& modifiers = arguments.modifiers;
  if (modifiers.function == nullptr) {
    return invalid("d_captures are given without a function: give modifiers.function, too");
  }
  if (arguments.d_captures.size() != modifiers.captures.size()) {
    return invalid("{} d_captures are given: the function has {} captures", arguments.d_captures.size(),
                   modifiers.captures.size());
  }
  const expression::Formula& formula = *problem.expression.formula;
  Checked elements = 0;
  for (std::size_t i = 0; i < arguments.d_captures.size(); ++i) {
    const TensorView& gradient = arguments.d_captures[i];
    if (!gradient.given()) continue;
    const bool read = modifiers.function->has_gradient(static_cast<int>(i));
    Status status = check_gradient(formula.captures()[i], modifiers.captures[i], gradient, read, problem.device);
    if (!status.ok()) return status;
    problem.expression.gradients |= 1U << i;
    elements = elements + elements_of(modifiers.captures[i]);
  }
  // Of other calls every size has one plan.
  if (problem.deterministic && problem.device.type == DeviceType::cuda) {
    problem.expression.gradient_elements = elements.value();
  }
  return {};
}

}  // namespace api
}  // namespace strobe
