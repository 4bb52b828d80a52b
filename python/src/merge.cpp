// SPDX-License-Identifier: Apache-2.0
#include "merge.h"

#include <vector>

#include "call_options.h"
#include "errors.h"
#include "imports.h"
#include "strobe/merge.h"

namespace nb = nanobind;

namespace strobe::python {

namespace {

constexpr const char* kFloats = "float32, float16 or bfloat16";

std::vector<PartialResult> read_parts(const nb::list& parts_o, const nb::list& parts_lse, Imports& imports) {
  std::vector<PartialResult> parts;
  for (std::size_t i = 0; i < parts_o.size(); ++i) {
    parts.push_back(
        {imports.view(parts_o[i], {"o of a part", kFloats}), imports.view(parts_lse[i], {"lse of a part", "float32"})});
  }
  return parts;
}

}  // namespace

void merge(const nb::list& parts_o, const nb::list& parts_lse, nb::handle o, nb::handle lse,
           const nb::kwargs& keywords) {
  Imports imports = imports_for(keywords);
  const std::vector<PartialResult> parts = read_parts(parts_o, parts_lse, imports);
  MergeArguments arguments;
  arguments.parts = parts;
  arguments.o = imports.view(o, {"o", kFloats, true});
  arguments.lse = imports.view(lse, {"lse", "float32", true});
  const CallOptions call = read_options(keywords, imports);
  Status status;
  {
    const nb::gil_scoped_release released;
    status = strobe::merge(arguments, call.execution);
  }
  raise_if_failed(status);
}

void merge_backward(const nb::list& parts_o, const nb::list& parts_lse, nb::handle d_o, nb::handle d_lse,
                    const nb::list& parts_d_o, const nb::list& parts_d_lse, const nb::kwargs& keywords) {
  Imports imports = imports_for(keywords);
  const std::vector<PartialResult> parts = read_parts(parts_o, parts_lse, imports);
  std::vector<PartialGradient> gradients;
  for (std::size_t i = 0; i < parts_d_o.size(); ++i) {
    gradients.push_back({imports.view(parts_d_o[i], {"d_o of a part", kFloats, true}),
                         imports.view(parts_d_lse[i], {"d_lse of a part", "float32", true})});
  }
  MergeBackwardArguments arguments;
  arguments.parts = parts;
  arguments.d_o = imports.view(d_o, {"d_o", kFloats});
  if (!d_lse.is_none()) arguments.d_lse = imports.view(d_lse, {"d_lse", "float32"});
  arguments.gradients = gradients;
  const CallOptions call = read_options(keywords, imports);
  Status status;
  {
    const nb::gil_scoped_release released;
    status = strobe::merge_backward(arguments, call.execution);
  }
  raise_if_failed(status);
}

}  // namespace strobe::python
