// SPDX-License-Identifier: Apache-2.0
// Texts that say what an option says, too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "call/problem.h"
#include "expression/score_terms.h"

namespace strobe {

/// The problem with a causal mask, a window, a softcap, a bias or ALiBi in the place of texts that say the same, such
/// as `k <= q + k_len - q_len && q - k < 512` and `30 * tanh(score / 30) + bias[head][q][k]`; others stay as they are.
/// Runs of such a plan have captures in the place of bias and slopes: engine::with_captured_options().
AttentionProblem with_built_in_options(AttentionProblem problem);

/// Of what that leaves: where a mask says more, as `k <= q && document[k] == document[q]` does, the causal mask or
/// window that a part of it says stands beside it, so that nobody looks at what that hides.
AttentionProblem with_implied_options(AttentionProblem problem);

/// Of a problem before that: the captures that it makes a bias and slopes, none where the score stays a text.
expression::ScoreTerms captured_options(const AttentionProblem& problem);

/// The capture's elements that a call reads, as the option has them: [batch or 1, heads_q or 1, seqlen_q, seqlen_k] of
/// a bias, [heads_q] or [batch, heads_q] of slopes.
template <class View>
View option_view(const expression::CapturedTensor& tensor, const AttentionProblem& problem, const View& capture) {
  View view = capture;
  view.rank = 0;
  view.shape = view.strides = {};
  const auto add = [&](int axis, std::int64_t extent) {
    const auto to = static_cast<std::size_t>(view.rank++);
    view.shape[to] = axis < 0 ? 1 : extent;
    view.strides[to] = axis < 0 ? 0 : capture.strides[static_cast<std::size_t>(axis)];
  };
  const bool is_bias = tensor.k >= 0;
  if (is_bias || tensor.batch >= 0) add(tensor.batch, problem.batch);
  add(tensor.head, problem.heads_q);
  if (is_bias) add(tensor.q, problem.seqlen_q);
  if (is_bias) add(tensor.k, problem.seqlen_k);
  return view;
}

/// Whether the capture has all elements that option_view() has, and, where `exactly`, no other.
bool covers(const expression::CapturedTensor& tensor, const AttentionProblem& problem, const ConstTensorView& capture,
            bool exactly);

}  // namespace strobe
