// SPDX-License-Identifier: Apache-2.0
// The options of a call, by keyword.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "imports.h"
#include "strobe/attention.h"

namespace strobe::python {

/// What both passes take beside their tensors.
struct CallOptions {
  AttentionOptions attention;
  Sequences sequences;
  ScoreModifiers modifiers;
  RandomState random;
  bool seeded = false;  // random was given, in any of its forms
  Execution execution;
  // The forward's alone.
  ConstTensorView q_descale;
  ConstTensorView k_descale;
  ConstTensorView v_descale;
  ConstTensorView q_shift;
  Rotation v_rotation;
  std::optional<DType> out_dtype;  // of 8-bit inputs, for a plan: a call has its output
  ConstTensorView page_table;
  ConstTensorView tree_mask;
};

/// Reads `keywords`, in which None stands for an option's default; its tensors come in through `imports`. TypeError for
/// a name that is no option or a value that is not of its kind, ValueError for a value out of range.
CallOptions read_options(const nanobind::kwargs& keywords, Imports& imports);

/// The value of the keyword "stream" as it is given.
Imports imports_for(const nanobind::kwargs& keywords);

}  // namespace strobe::python
