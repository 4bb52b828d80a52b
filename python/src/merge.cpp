// SPDX-License-Identifier: Apache-2.0
#include "merge.h"

#include <vector>

#include "call_options.h"
#include "errors.h"
#include "imports.h"
#include "strobe/merge.h"

namespace nb = nanobind;

namespace strobe::python {

void merge(const nb::list& parts_o, const nb::list& parts_lse, nb::handle o, nb::handle lse,
           const nb::kwargs& keywords) {
  constexpr const char* kFloats = "float32, float16 or bfloat16";
  Imports imports = imports_for(keywords);
  std::vector<PartialResult> parts;
  for (std::size_t i = 0; i < parts_o.size(); ++i) {
    parts.push_back(
        {imports.view(parts_o[i], {"o of a part", kFloats}), imports.view(parts_lse[i], {"lse of a part", "float32"})});
  }
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

}  // namespace strobe::python
