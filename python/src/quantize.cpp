// SPDX-License-Identifier: Apache-2.0
#include "quantize.h"

#include <fmt/format.h>

#include <functional>

#include "call_options.h"
#include "call_tensors.h"
#include "errors.h"
#include "imports.h"
#include "strobe/error_budget.h"
#include "strobe/quantize.h"
#include "values.h"
#include "workspace.h"

namespace nb = nanobind;

namespace strobe::python {

void quantize(nb::handle q, nb::handle k, nb::handle v, nb::handle q8, nb::handle k8, nb::handle v8,
              nb::handle q_descale, nb::handle k_descale, nb::handle v_descale, nb::handle q_shift, int q_scales,
              int k_scales, int v_scales, nb::handle rotate_qk, nb::handle rotate_v, nb::handle seed,
              nb::handle allocate_workspace, const nb::kwargs& keywords) {
  Imports imports = imports_for(keywords);
  QuantizeArguments arguments;
  import_tensors(imports, arguments, {{"q", q}, {"k", k}, {"v", v}});
  CallOptions call = read_options(keywords, imports);
  arguments.sequences = call.arguments.sequences;
  import_tensors(imports, arguments,
                 {{"q8", q8},
                  {"k8", k8},
                  {"v8", v8},
                  {"q_descale", q_descale},
                  {"k_descale", k_descale},
                  {"v_descale", v_descale},
                  {"q_shift", q_shift}});
  const QuantizeOptions options{.element = arguments.q8.dtype,
                                .q_scales = static_cast<ScaleUnit>(q_scales),
                                .k_scales = static_cast<ScaleUnit>(k_scales),
                                .v_scales = static_cast<ScaleUnit>(v_scales),
                                .rotate_qk = boolean({"rotate_qk", rotate_qk}),
                                .rotate_v = boolean({"rotate_v", rotate_v}),
                                .seed = unsigned_integer({"seed", seed}),
                                .center_k = arguments.q_shift.given()};
  WorkspaceFunction workspace(allocate_workspace, imports);
  const AllocateWorkspace allocate = std::ref(workspace);
  if (!allocate_workspace.is_none()) call.execution.allocate_workspace = &allocate;
  Status status;
  {
    const nb::gil_scoped_release released;
    status = strobe::quantize(arguments, options, call.execution);
  }
  raise_if_failed(status);
}

nb::dict plan_quantization(nb::handle q, nb::handle k, nb::handle v, int mode, nb::handle max_rmse,
                           nb::handle max_error, nb::handle seed, const nb::kwargs& keywords) {
  Imports imports = imports_for(keywords);
  CallOptions call;
  ForwardArguments& given = call.arguments;
  import_tensors(imports, given, {{"q", q}, {"k", k}, {"v", v}});
  read_options(keywords, imports, call);
  for_each_tensor(given.sequences, [](const CallTensor& tensor, const ConstTensorView& lengths) {
    if (!is_cumulative(tensor) || !lengths.given()) return;
    raise_if_failed({StatusCode::unsupported,
                     fmt::format("{} is given: plan_quantization takes tensors with a batch axis", tensor.name)});
  });
  const ErrorBudget budget{static_cast<QuantizationMode>(mode), number({"max_rmse", max_rmse}),
                           number({"max_error", max_error})};
  const std::uint64_t rotation = unsigned_integer({"seed", seed});
  const auto plan = [&] {
    const nb::gil_scoped_release released;
    return strobe::plan_quantization(given.q, given.k, given.v, budget, call.attention, rotation);
  }();
  raise_if_failed(plan.status());
  nb::dict to;
  to["element"] = plan->options.element == DType::int8 ? "int8" : "float8_e4m3fn";
  to["q_scales"] = static_cast<int>(plan->options.q_scales);
  to["k_scales"] = static_cast<int>(plan->options.k_scales);
  to["v_scales"] = static_cast<int>(plan->options.v_scales);
  to["rotate_qk"] = plan->options.rotate_qk;
  to["rotate_v"] = plan->options.rotate_v;
  to["center_k"] = plan->options.center_k;
  to["seed"] = plan->options.seed;
  to["rmse"] = plan->rmse;
  to["error_bound"] = plan->error_bound;
  to["measured"] = plan->measured;
  to["keys_per_sum"] = plan->keys_per_sum;
  to["explanation"] = plan->explanation.c_str();
  return to;
}

}  // namespace strobe::python
