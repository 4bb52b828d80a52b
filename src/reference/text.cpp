// SPDX-License-Identifier: Apache-2.0
#include "reference/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

namespace strobe::reference {
namespace {

using expression::Id;
using expression::Variable;

/// The value of `id` among those of the nodes `ids`.
template <class Value>
const Value& of(const std::vector<Id>& ids, const std::vector<Value>& values, Id id) {
  return values[static_cast<std::size_t>(std::ranges::lower_bound(ids, id) - ids.begin())];
}

std::optional<std::int64_t> offset_of(const ConstTensorView& view, std::span<const std::int64_t> indices, bool memory) {
  std::int64_t offset = 0;
  for (std::size_t axis = 0; axis < indices.size(); ++axis) {
    if (indices[axis] < 0 || indices[axis] >= view.shape[axis]) return std::nullopt;
    offset = memory ? offset + indices[axis] * view.strides[axis] : offset * view.shape[axis] + indices[axis];
  }
  return offset;
}

}  // namespace

HeadText::HeadText(const ScoreModifiers& given, const SequenceRows& rows, std::int64_t head, std::int64_t head_kv)
    : given_(given), rows_(rows), head_(head), head_kv_(head_kv) {
  if (given.function == nullptr) return;
  formula_ = given.function->formula();
  if (has_mask()) written_mask_ = expression::reachable(formula_->written(), std::array{formula_->written_mask()});
  if (!has_score()) return;
  written_score_ = expression::reachable(formula_->written(), std::array{formula_->written_score()});
  std::vector<Id> roots{formula_->score(), formula_->slope()};
  for (const expression::Read& read : formula_->reads()) {
    roots.push_back(read.derivative);
    std::ranges::copy(formula_->graph()[read.load].inputs(), std::back_inserter(roots));
  }
  derived_ = expression::reachable(formula_->graph(), roots);
}

double HeadText::element(int capture, std::span<const std::int64_t> indices) const {
  const ConstTensorView& view = given_.captures[static_cast<std::size_t>(capture)];
  const std::optional<std::int64_t> offset = offset_of(view, indices, true);
  if (!offset) return 0.0;
  const double value = load(view, *offset);
  switch (view.dtype) {
    case DType::uint8: return value != 0.0 ? 1.0 : 0.0;
    case DType::int64:
      return std::clamp<double>(value, std::numeric_limits<std::int32_t>::min(),
                                std::numeric_limits<std::int32_t>::max());
    default: return value;
  }
}

expression::Point HeadText::point(std::int64_t query, std::int64_t key, const expression::Bounded& score) const {
  expression::Point point;
  const auto set = [&](Variable variable, double value) {
    point.variables[static_cast<std::size_t>(variable)] = value;
  };
  set(Variable::score, score.value);
  set(Variable::q, static_cast<double>(rows_.position_q + query));
  set(Variable::k, static_cast<double>(rows_.position_k + key));
  set(Variable::head, static_cast<double>(head_));
  set(Variable::head_kv, static_cast<double>(head_kv_));
  set(Variable::batch, static_cast<double>(rows_.sequence));
  set(Variable::q_len, static_cast<double>(rows_.seqlen_q));
  set(Variable::k_len, static_cast<double>(rows_.seqlen_k));
  point.score_error = score.error;
  point.load = [this](int capture, std::span<const std::int64_t> indices) { return element(capture, indices); };
  return point;
}

bool HeadText::shows(std::int64_t query, std::int64_t key) const {
  return expression::evaluate(formula_->written(), written_mask_, point(query, key, {})).back() != 0.0;
}

TextScore HeadText::apply(std::int64_t query, std::int64_t key, const expression::Bounded& score) const {
  const expression::Point at = point(query, key, score);
  const double written = expression::evaluate(formula_->written(), written_score_, at).back();
  const std::vector<expression::Bounded> derived = expression::evaluate_bounded(formula_->graph(), derived_, at);
  const expression::Bounded& value = of(derived_, derived, formula_->score());
  const double between = written == value.value ? 0.0 : std::fabs(written - value.value);
  return {{written, std::isnan(between) ? 0.0 : value.error + between}, of(derived_, derived, formula_->slope())};
}

std::vector<TextRead> HeadText::reads(std::int64_t query, std::int64_t key, const expression::Bounded& score) const {
  std::vector<TextRead> found;
  const std::vector<expression::Bounded> derived =
      expression::evaluate_bounded(formula_->graph(), derived_, point(query, key, score));
  for (const expression::Read& read : formula_->reads()) {
    std::vector<std::int64_t> indices;
    for (const Id index : formula_->graph()[read.load].inputs()) {
      indices.push_back(static_cast<std::int64_t>(of(derived_, derived, index).value));
    }
    const ConstTensorView& view = given_.captures[static_cast<std::size_t>(read.capture)];
    const std::optional<std::int64_t> element = offset_of(view, indices, false);
    if (element) found.push_back({read.capture, *element, of(derived_, derived, read.derivative)});
  }
  return found;
}

}  // namespace strobe::reference
