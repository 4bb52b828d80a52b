// SPDX-License-Identifier: Apache-2.0
// Scores whose text is a sum of what options say: the score, capped or not, a bias and distances times slopes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "call/problem.h"

namespace strobe {

/// A capture that a text reads by nothing but the call's own axes.
struct CapturedTensor {
  int capture = -1;  // its number; -1: there is none
  int rank = 0;
  // Its axis that the variable of that name indexes, -1: none. Those of the four that are there are in this order;
  // other axes have index 0.
  int batch = -1, head = -1, q = -1, k = -1;

  bool given() const { return capture >= 0; }
};

/// The score or its softcap, to which a bias and ALiBi may be added.
struct ScoreTerms {
  float softcap = 0.0F;             // 0: none
  CapturedTensor bias;              // [q][k], and before them [batch], [head] or both
  CapturedTensor slopes;            // [head] or [batch][head]
  bool distance_to_center = false;  // slopes: from key q + k_len - q_len, else from key q
  bool both_sides = false;          // slopes: by -abs(distance), else by the key less the query

  bool has_captures() const { return bias.given() || slopes.given(); }
};

/// None of texts that say anything else.
std::optional<ScoreTerms> score_terms(const expression::Formula& formula);

/// The capture's elements that a call reads, as the option has them: [batch or 1, heads_q or 1, seqlen_q, seqlen_k] of
/// a bias, [heads_q] or [batch, heads_q] of slopes.
template <class View>
View option_view(const CapturedTensor& tensor, const AttentionProblem& problem, const View& capture) {
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
bool covers(const CapturedTensor& tensor, const AttentionProblem& problem, const ConstTensorView& capture,
            bool exactly);

}  // namespace strobe
