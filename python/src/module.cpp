// SPDX-License-Identifier: Apache-2.0
// strobe._core: what the Python package is built on. Its signatures are in strobe/_core.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <utility>
#include <vector>

#include "append.h"
#include "expressions.h"
#include "imports.h"
#include "jax_calls.h"
#include "masks.h"
#include "merge.h"
#include "passes.h"
#include "program.h"
#include "quantize.h"
#include "report.h"
#include "sparse.h"
#include "strobe/strobe.h"
#include "thread_pool.h"
#include "values.h"

namespace nb = nanobind;

namespace strobe::python {
namespace {

void bind_tensor_shape(nb::module_& module) {
  nb::class_<NamedShape>(module, "TensorShape")
      .def(
          "__init__",
          [](NamedShape* self, const nb::list& shape, const std::string& dtype, bool cuda, nb::handle index) {
            std::vector<std::int64_t> extents;
            for (const nb::handle extent : shape) extents.push_back(integer({"an extent of a shape", extent}));
            const Device device{cuda ? DeviceType::cuda : DeviceType::cpu, short_integer({"a device's index", index})};
            new (self) NamedShape{std::move(extents), dtype, device};
          },
          nb::arg("shape"), nb::arg("dtype"), nb::arg("cuda"), nb::arg("index"));
}

/// Values as options take them, for what Python reads itself.
void bind_values(nb::module_& module) {
  module.def(
      "boolean", [](const char* name, nb::handle value) { return boolean({name, value}); }, nb::arg("name"),
      nb::arg("value").none());
  module.def(
      "integer", [](const char* name, nb::handle value) { return integer({name, value}); }, nb::arg("name"),
      nb::arg("value").none());
  module.def(
      "unsigned_integer", [](const char* name, nb::handle value) { return unsigned_integer({name, value}); },
      nb::arg("name"), nb::arg("value").none());
}

}  // namespace
}  // namespace strobe::python

NB_MODULE(_core, module) {
  using namespace strobe::python;
  module.attr("version") = strobe_version();

  bind_tensor_shape(module);
  module.def("forward", &forward, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(), nb::arg("out").none(),
             nb::arg("lse").none(), nb::arg("max_logits").none(), nb::arg("heads_first") = false, nb::arg("options"));
  module.def("backward", &backward, nb::arg("d_o").none(), nb::arg("q").none(), nb::arg("k").none(),
             nb::arg("v").none(), nb::arg("o").none(), nb::arg("lse").none(), nb::arg("d_lse").none(),
             nb::arg("dq").none(), nb::arg("dk").none(), nb::arg("dv").none(), nb::arg("d_bias").none(),
             nb::arg("d_sink").none(), nb::arg("allocate_workspace").none(), nb::arg("d_captures") = nb::none(),
             nb::arg("dqv") = nb::none(), nb::arg("options"));
  module.def("jvp", &jvp, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(), nb::arg("q_tangent").none(),
             nb::arg("k_tangent").none(), nb::arg("v_tangent").none(), nb::arg("o").none(), nb::arg("lse").none(),
             nb::arg("o_tangent").none(), nb::arg("lse_tangent").none(), nb::arg("options"));
  module.def("explain", &explain, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(), nb::arg("backward"),
             nb::arg("options"));
  module.def("quantize", &quantize, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(), nb::arg("q8").none(),
             nb::arg("k8").none(), nb::arg("v8").none(), nb::arg("q_descale").none(), nb::arg("k_descale").none(),
             nb::arg("v_descale").none(), nb::arg("q_shift").none(), nb::arg("q_scales"), nb::arg("k_scales"),
             nb::arg("v_scales"), nb::arg("rotate_qk").none(), nb::arg("rotate_v").none(), nb::arg("seed").none(),
             nb::arg("allocate_workspace").none(), nb::arg("options"));
  module.def("merge", &merge, nb::arg("parts_o"), nb::arg("parts_lse"), nb::arg("o").none(), nb::arg("lse").none(),
             nb::arg("options"));
  module.def("merge_backward", &merge_backward, nb::arg("parts_o"), nb::arg("parts_lse"), nb::arg("d_o").none(),
             nb::arg("d_lse").none(), nb::arg("parts_d_o"), nb::arg("parts_d_lse"), nb::arg("options"));
  module.def("append", &append, nb::arg("k_cache").none(), nb::arg("v_cache").none(), nb::arg("k_new").none(),
             nb::arg("v_new").none(), nb::arg("cache_seqlens").none(), nb::arg("tensors"),
             nb::arg("interleaved").none(), nb::arg("q_in_order").none(), nb::arg("options"));
  module.def("plan_quantization", &plan_quantization, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(),
             nb::arg("mode"), nb::arg("max_rmse").none(), nb::arg("max_error").none(), nb::arg("seed").none(),
             nb::arg("options"));
  module.def("set_threads", &set_threads, nb::arg("threads").none());
  module.def("get_threads", &threads);
  module.def("gpu_report", &gpu_report);
  module.def("run_program", &run_program, nb::arg("arguments"), nb::arg("python"));
  bind_values(module);
  bind_score_function(module);
  bind_masks(module);
  bind_sparse(module);
  bind_jax_handlers(module);
}
