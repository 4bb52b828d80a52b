// SPDX-License-Identifier: Apache-2.0
// The options of a call, by keyword.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "expressions.h"
#include "imports.h"
#include "strobe/attention.h"

namespace strobe::python {

/// What calls take by keyword.
struct CallOptions {
  AttentionOptions attention;
  ForwardArguments arguments;  // its optional inputs, those of a backward among them
  Expression expression;       // what arguments.modifiers points to
  bool seeded = false;         // arguments.random was given, in any of its forms
  Execution execution;
  std::optional<DType> out_dtype;  // of 8-bit inputs, for a plan: a call has its output
};

/// Reads `keywords`, in which None stands for an option's default; its tensors come in through `imports`. TypeError for
/// a name that is no option or a value that is not of its kind, ValueError for a value out of range.
void read_options(const nanobind::kwargs& keywords, Imports& imports, CallOptions& options);
CallOptions read_options(const nanobind::kwargs& keywords, Imports& imports);

/// The value of the keyword "stream" as it is given.
Imports imports_for(const nanobind::kwargs& keywords);

}  // namespace strobe::python
