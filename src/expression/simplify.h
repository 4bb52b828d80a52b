// SPDX-License-Identifier: Apache-2.0
// Rewrites of one node when it is added to a graph. They keep the value of every text but for rounding, and for a
// product with a literal 0, which is 0.
#pragma once

#include "expression/graph.h"

namespace strobe::expression {

class Simplify {
 public:
  explicit Simplify(Graph& graph) : graph_(graph) {}

  Id unary(const Node& node);
  Id binary(const Node& node);
  Id select(const Node& node);

 private:
  Id folded(const Node& node);
  bool all_literals(const Node& node) const;
  bool depends_on_score(Id id) const;
  Id sum(const Node& node);
  Id product(const Node& node);
  Id quotient(const Node& node);
  Id comparison(const Node& node);
  Id logic(const Node& node);

  Graph& graph_;
};

}  // namespace strobe::expression
