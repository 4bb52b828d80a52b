// SPDX-License-Identifier: Apache-2.0
#include "append.h"

#include "call_options.h"
#include "call_tensors.h"
#include "errors.h"
#include "imports.h"
#include "strobe/cache.h"
#include "values.h"

namespace nb = nanobind;

namespace strobe::python {
void append(nb::handle k_cache, nb::handle v_cache, nb::handle k_new, nb::handle v_new, nb::handle cache_seqlens,
            const nb::dict& tensors, nb::handle interleaved, nb::handle q_in_order, const nb::kwargs& keywords) {
  Imports imports = imports_for(keywords);
  AppendArguments arguments;
  import_tensors(imports, arguments,
                 {{"k_cache", k_cache},
                  {"v_cache", v_cache},
                  {"k_new", k_new},
                  {"v_new", v_new},
                  {"cache_seqlens", cache_seqlens}});
  for_each_tensor(arguments, [&](const CallTensor& tensor, auto& view) {
    const nb::object given = tensors.get(tensor.name.data(), nb::none());
    if (!given.is_none()) view = imports.view(given, role_of(tensor));
  });
  arguments.interleaved = boolean({"interleaved", interleaved});
  arguments.q_in_order = boolean({"q_in_order", q_in_order});
  const CallOptions call = read_options(keywords, imports);
  Status status;
  {
    const nb::gil_scoped_release released;
    status = strobe::append(arguments, call.execution);
  }
  raise_if_failed(status);
}

}  // namespace strobe::python
