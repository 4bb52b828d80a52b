// SPDX-License-Identifier: Apache-2.0
// The call's score modifiers and dropout as the tasks of one sequence and group of heads see them.
#pragma once

#include <cstdint>

#include "call/heads.h"
#include "call/random_state.h"
#include "cpu/kernels/task.h"
#include "cpu/passes.h"
#include "cpu/workspace.h"

namespace strobe::cpu {

/// Modifiers are [batch or 1, heads_q or 1, ...]: what is shared has stride 0 here.
class GroupModifiers {
 public:
  GroupModifiers(const AttentionProblem& problem, const ScoreModifiers& modifiers, const RandomState& random)
      : problem_(problem), modifiers_(modifiers), random_(numbers_of(random, problem.dropout)) {}

  /// `batch` is the sequence's index, `group` a group of heads as in heads_per_group().
  BlockMask blocks(std::int64_t batch, std::int64_t group) const;
  ScoreTerms terms(std::int64_t batch, std::int64_t group) const;
  GroupDropout dropout(const Sequence& sequence, std::int64_t batch, std::int64_t group) const;
  const float* sinks(std::int64_t group) const;  // null: none
  /// `call` is null where the problem has no expressions; `memory` is the worker's.
  ExpressionTask expression(const CallExpressions* call, const Sequence& sequence, std::int64_t batch,
                            std::int64_t group, std::byte* memory) const;

  /// The gradient's rows, laid out as the bias's.
  GroupRows<float*> d_bias(const TensorView& d_bias, std::int64_t batch, std::int64_t group) const;

 private:
  std::int64_t first_head(std::int64_t group) const { return group * heads_per_group(problem_); }

  template <class Pointer>
  GroupRows<Pointer> bias_rows(Pointer data, const ConstTensorView& view, std::int64_t batch, std::int64_t group) const;

  const AttentionProblem& problem_;
  const ScoreModifiers& modifiers_;
  const RandomState random_;
};

}  // namespace strobe::cpu
