// SPDX-License-Identifier: Apache-2.0
// The exact derivative of an expression, as nodes of its own graph: reverse mode.
//
// Where the value has a corner, the derivative is that of the operand that is taken: of min and max the first of two
// equal ones; that of abs at 0 is 0; that of floor is 0. A branch that is not taken contributes nothing, whatever its
// derivative would be.
// Source: Griewank and Walther, "Evaluating Derivatives" (2008), chapter 3.
#pragma once

#include <vector>

#include "expression/graph.h"

namespace strobe::expression {

struct Adjoint {
  Id load;        // an element of a capture
  Id derivative;  // of the root with respect to that element
};

struct Adjoints {
  Id score = 0;                // of the root with respect to the score
  std::vector<Adjoint> loads;  // of real captures
};

/// Adds the derivatives of `root`, a real, to the graph.
Adjoints differentiate(Graph& graph, Id root);

}  // namespace strobe::expression
