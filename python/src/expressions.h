// SPDX-License-Identifier: Apache-2.0
// The options `score`, `mask_text` and `captures`, and gradients of captures, from Python.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "imports.h"
#include "score_functions.h"
#include "strobe/attention.h"

namespace strobe::python {

/// Texts and tensors of a call. What a call's arguments point to stays where it is when this moves.
struct Expression {
  std::string score, mask;
  nanobind::handle given_captures;  // a dict of names and tensors; null or None: there are none

  SharedFunction function;  // null: no text
  std::vector<ConstTensorView> captures;

  /// Imports the captures and parses the texts, in the place of what `modifiers` has of these. ValueError, TypeError.
  void read(Imports& imports, ScoreModifiers& modifiers);
};

/// Views of the gradients in a dict of names of captures and tensors, in the function's order; none for None.
std::vector<TensorView> import_gradients(Imports& imports, const Expression& expression, nanobind::handle gradients);

/// strobe._core.ScoreFunction.
void bind_score_function(nanobind::module_& module);

}  // namespace strobe::python
