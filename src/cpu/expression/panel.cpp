// SPDX-License-Identifier: Apache-2.0
#include "cpu/expression/panel.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "call/arithmetic.h"
#include "cpu/expression/captures.h"
#include "cpu/kernels/expression_steps.h"
#include "cpu/kernels/task.h"

namespace strobe::cpu {
namespace {

using expression::Id;
using expression::Op;
using expression::Range;
using expression::Variable;

constexpr std::int64_t kPartElements = 768;  // of a slot: what fits the nearest cache beside a few others

ExpressionProgram program_of(const CallExpressions& call, std::vector<Id> roots, PanelOrder order) {
  if (call.has_mask) roots.push_back(call.formula->mask());
  return {call.formula->graph(), roots, order};
}

/// A program at work on one panel.
class PanelRun {
 public:
  PanelRun(const ExpressionTask& task, const ExpressionProgram& program, const ExpressionPanel& panel)
      : task_(task), program_(program), panel_(panel) {
    for (const ExpressionStep& step : program.once) run(step, 0, part_rows());
  }

  /// Calls visit(first, count, roots) for parts of the panel's rows, with an array of each root's elements.
  template <class Visit>
  void each_part(const float* scores, const Visit& visit) {
    std::array<void*, kMostRoots> roots{};
    for (std::size_t i = 0; i < program_.roots.size(); ++i) roots[i] = slot(program_.roots[i]);
    for (std::int64_t first = 0; first < panel_.along; first += part_rows()) {
      const std::int64_t count = std::min(part_rows(), panel_.along - first);
      scores_ = scores + first * panel_.width;
      for (const ExpressionStep& step : program_.steps) run(step, first, count);
      visit(first, count, roots.data());
    }
  }

  static constexpr std::size_t kMostRoots = 5 * expression::kMostReads;

 private:
  std::int64_t part_rows() const { return std::max<std::int64_t>(kPartElements / panel_.width, 1); }
  void* slot(int index) const {
    return task_.memory + index * kPartElements * static_cast<std::int64_t>(sizeof(float));
  }
  std::int32_t* integers(int index) const { return static_cast<std::int32_t*>(slot(index)); }

  std::int64_t elements(Extent extent, std::int64_t rows) const {
    switch (extent) {
      case Extent::one: return 1;
      case Extent::across: return panel_.width;
      case Extent::along: return rows;
      default: return rows * panel_.width;
    }
  }

  void run(const ExpressionStep& step, std::int64_t first, std::int64_t rows) {
    if (step.expands) return expand(step, rows);
    const std::int64_t count = elements(step.extent, rows);
    const std::int64_t padded = round_up(count, kStepMultiple);
    if (step.op == Op::variable) return variable(step, first, count, padded);
    if (step.op == Op::literal) return literal(step, padded);
    std::array<const void*, expression::kMostChildren> operands{};
    for (std::size_t i = 0; i < step.count; ++i) operands[i] = slot(step.operands[i]);
    if (step.op == Op::load) {
      load_capture(task_.captures[step.which], step.count, operands.data(), slot(step.result), padded);
    } else {
      run_step(step, operands.data(), slot(step.result), padded);
    }
  }

  /// Elements are 32 bits wide, whatever they are.
  void expand(const ExpressionStep& step, std::int64_t rows) const {
    const std::int32_t* from = integers(step.operands[0]);
    std::int32_t* to = integers(step.result);
    if (step.from == Extent::one) {
      std::fill_n(to, round_up(elements(step.extent, rows), kStepMultiple), *from);
    } else if (step.from == Extent::across) {
      for (std::int64_t r = 0; r < rows; ++r) std::copy_n(from, panel_.width, to + r * panel_.width);
    } else {
      for (std::int64_t r = 0; r < rows; ++r) std::fill_n(to + r * panel_.width, panel_.width, from[r]);
    }
  }

  void literal(const ExpressionStep& step, std::int64_t count) const {
    if (step.type == expression::Type::real) {
      std::fill_n(static_cast<float*>(slot(step.result)), count, static_cast<float>(step.value));
    } else {
      std::fill_n(integers(step.result), count, static_cast<std::int32_t>(step.value));
    }
  }

  void variable(const ExpressionStep& step, std::int64_t first, std::int64_t count, std::int64_t padded) {
    const auto variable = static_cast<Variable>(step.which);
    std::int32_t* to = integers(step.result);
    switch (variable) {
      case Variable::score: std::memcpy(to, scores_, static_cast<std::size_t>(count) * sizeof(float)); break;
      case Variable::q:
      case Variable::head: fill_queries(variable == Variable::q, first, count, to); break;
      case Variable::k: fill_keys(first, count, to); break;
      case Variable::head_kv: *to = task_.head_kv; break;
      case Variable::batch: *to = task_.batch; break;
      case Variable::q_len: *to = task_.q_len; break;
      case Variable::k_len: *to = task_.k_len; break;
    }
    std::fill(to + count, to + padded, 0);
  }

  void fill_queries(bool positions, std::int64_t first, std::int64_t count, std::int32_t* to) const {
    for (std::int64_t i = 0; i < count; ++i) {
      const RowPlace place = row_place(panel_.row + std::min(first + i, panel_.rows - 1), panel_.group);
      to[i] = static_cast<std::int32_t>(positions ? task_.first_position + place.position : task_.head + place.head);
    }
  }

  void fill_keys(std::int64_t first, std::int64_t count, std::int32_t* to) const {
    for (std::int64_t i = 0; i < count; ++i) {
      to[i] = static_cast<std::int32_t>(task_.first_key + panel_.key + std::min(first + i, panel_.keys - 1));
    }
  }

  const ExpressionTask& task_;
  const ExpressionProgram& program_;
  const ExpressionPanel& panel_;
  const float* scores_ = nullptr;
};

}  // namespace

CallExpressions::CallExpressions(const AttentionProblem& problem, PanelOrder order)
    : formula(problem.expression.formula),
      has_score(formula->has_score() && !problem.expression.score_is_option),
      has_mask(formula->has_mask() && !problem.expression.mask_is_option) {
  scores = program_of(*this, has_score ? std::vector<Id>{formula->score()} : std::vector<Id>{}, order);
  if (has_mask) mask_nodes = expression::reachable(formula->graph(), std::array{formula->mask()});
  if (problem.pass != Pass::backward || !has_score) return;
  slopes = program_of(*this, {formula->score(), formula->slope()}, order);
  std::vector<Id> roots;
  for (const expression::Read& read : formula->reads()) {
    if ((problem.expression.gradients >> read.capture & 1U) == 0) continue;
    reads.push_back(read);
    roots.push_back(read.derivative);
    const auto indices = formula->graph()[read.load].inputs();
    roots.insert(roots.end(), indices.begin(), indices.end());
  }
  gradients = {formula->graph(), roots, order};
}

std::int64_t CallExpressions::bytes() const {
  return std::max({scores.slots, slopes.slots, gradients.slots}) * kPartElements *
         static_cast<std::int64_t>(sizeof(float));
}

TileVisibility tile_visibility(const ExpressionTask& task, const ExpressionPanel& panel) {
  if (!task.has_mask()) return TileVisibility::full;
  const RowPlace first = row_place(panel.row, panel.group);
  const RowPlace last = row_place(panel.row + panel.rows - 1, panel.group);
  const bool one_position = first.position == last.position;
  expression::TileRanges tile;
  const auto set = [&](Variable variable, std::int64_t low, std::int64_t high) {
    tile.variables[static_cast<std::size_t>(variable)] = {low, high};
  };
  set(Variable::q, task.first_position + first.position, task.first_position + last.position);
  set(Variable::k, task.first_key + panel.key, task.first_key + panel.key + panel.keys - 1);
  set(Variable::head, task.head + (one_position ? first.head : 0),
      task.head + (one_position ? last.head : panel.group - 1));
  set(Variable::head_kv, task.head_kv, task.head_kv);
  set(Variable::batch, task.batch, task.batch);
  set(Variable::q_len, task.q_len, task.q_len);
  set(Variable::k_len, task.k_len, task.k_len);
  tile.load = [&](int capture, std::span<const Range> indices) {
    return capture_range(task.captures[capture], indices, expression::type_of(task.call->formula->captures()[capture]));
  };
  const expression::Formula& formula = *task.call->formula;
  const Range range = expression::range_of(formula.graph(), task.call->mask_nodes, formula.mask(), tile);
  return range.high == 0 ? TileVisibility::hidden : range.low == 1 ? TileVisibility::full : TileVisibility::partial;
}

void transform_scores(const ExpressionTask& task, const ExpressionPanel& panel, bool masked, float* scores) {
  const bool has_score = task.call->has_score;
  masked = masked && task.has_mask();
  if (!has_score && !masked) return;
  PanelRun(task, task.call->scores, panel).each_part(scores, [&](std::int64_t first, std::int64_t rows, void** roots) {
    float* at = scores + first * panel.width;
    const std::int64_t count = rows * panel.width;
    if (has_score) std::memcpy(at, roots[0], static_cast<std::size_t>(count) * sizeof(float));
    if (!masked) return;
    const auto* shown = static_cast<const std::int32_t*>(roots[has_score ? 1 : 0]);
    for (std::int64_t i = 0; i < count; ++i) at[i] = shown[i] != 0 ? at[i] : -kInfinity;
  });
}

void transform_with_slopes(const ExpressionTask& task, const ExpressionPanel& panel, float* scores, float* slopes) {
  const bool has_score = task.call->has_score;
  const bool has_mask = task.has_mask();
  const ExpressionProgram& program = has_score ? task.call->slopes : task.call->scores;
  PanelRun(task, program, panel).each_part(scores, [&](std::int64_t first, std::int64_t rows, void** roots) {
    float* at = scores + first * panel.width;
    float* slope = slopes + first * panel.width;
    const std::int64_t count = rows * panel.width;
    if (has_score) {
      std::memcpy(at, roots[0], static_cast<std::size_t>(count) * sizeof(float));
      std::memcpy(slope, roots[1], static_cast<std::size_t>(count) * sizeof(float));
    } else {
      std::fill_n(slope, count, 1.0F);
    }
    if (!has_mask) return;
    const auto* shown = static_cast<const std::int32_t*>(roots[has_score ? 2 : 0]);
    for (std::int64_t i = 0; i < count; ++i) {
      at[i] = shown[i] != 0 ? at[i] : -kInfinity;
      slope[i] = shown[i] != 0 ? slope[i] : 0.0F;
    }
  });
}

void add_capture_gradients(const ExpressionTask& task, const ExpressionPanel& panel, const float* scores,
                           const float* d_scores) {
  const bool queries_across = task.call->gradients.order == PanelOrder::queries_across;
  const std::int64_t across = std::min(panel.width, queries_across ? panel.rows : panel.keys);
  const std::int64_t along = std::min(panel.along, queries_across ? panel.keys : panel.rows);
  PanelRun(task, task.call->gradients, panel)
      .each_part(scores, [&](std::int64_t first, std::int64_t rows, void** roots) {
        for (const expression::Read& read : task.call->reads) {
          const TensorView& gradient = task.d_captures[read.capture];
          const int rank = task.call->formula->graph()[read.load].count;
          for (std::int64_t r = first; r < std::min(first + rows, along); ++r) {
            add_at(gradient, rank, roots, (r - first) * panel.width, across, d_scores + r * panel.width);
          }
          roots += 1 + rank;
        }
      });
}

}  // namespace strobe::cpu
