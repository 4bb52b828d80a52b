// SPDX-License-Identifier: Apache-2.0
// Scores whose text is a sum of what options say: the score, capped or not, a bias and distances times slopes.
#pragma once

#include <optional>

#include "expression/graph.h"

namespace strobe::expression {

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

/// None of scores that say anything else.
std::optional<ScoreTerms> score_terms(const Graph& graph, Id score);

}  // namespace strobe::expression
