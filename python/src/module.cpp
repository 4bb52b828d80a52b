// SPDX-License-Identifier: Apache-2.0
// strobe._core: what the Python package is built on. Its signatures are in strobe/_core.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "append.h"
#include "imports.h"
#include "jax_calls.h"
#include "masks.h"
#include "merge.h"
#include "passes.h"
#include "quantize.h"
#include "strobe/strobe.h"

namespace nb = nanobind;

NB_MODULE(_core, module) {
  using namespace strobe::python;
  module.attr("version") = strobe_version();

  nb::class_<TensorShape>(module, "TensorShape")
      .def(
          "__init__",
          [](TensorShape* self, std::vector<std::int64_t> shape, const std::string& dtype, bool cuda, int index) {
            const strobe::Device device{cuda ? strobe::DeviceType::cuda : strobe::DeviceType::cpu, index};
            new (self)
                TensorShape{std::move(shape), dtype_named(dtype, {"dtype", "float32, float16 or bfloat16"}), device};
          },
          nb::arg("shape"), nb::arg("dtype"), nb::arg("cuda"), nb::arg("index"));

  module.def("forward", &forward, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(), nb::arg("o").none(),
             nb::arg("lse").none(), nb::arg("max_logits").none(), nb::arg("heads_first") = false, nb::arg("options"));
  module.def("backward", &backward, nb::arg("d_o").none(), nb::arg("q").none(), nb::arg("k").none(),
             nb::arg("v").none(), nb::arg("o").none(), nb::arg("lse").none(), nb::arg("d_lse").none(),
             nb::arg("dq").none(), nb::arg("dk").none(), nb::arg("dv").none(), nb::arg("d_bias").none(),
             nb::arg("d_sink").none(), nb::arg("allocate_workspace").none(), nb::arg("options"));
  module.def("explain", &explain, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(), nb::arg("backward"),
             nb::arg("options"));
  module.def("quantize", &quantize, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(), nb::arg("q8"),
             nb::arg("k8"), nb::arg("v8"), nb::arg("q_descale"), nb::arg("k_descale"), nb::arg("v_descale"),
             nb::arg("q_shift").none(), nb::arg("q_scales"), nb::arg("k_scales"), nb::arg("v_scales"),
             nb::arg("rotate_qk"), nb::arg("rotate_v"), nb::arg("seed"), nb::arg("allocate_workspace").none(),
             nb::arg("options"));
  module.def("merge", &merge, nb::arg("parts_o"), nb::arg("parts_lse"), nb::arg("o"), nb::arg("lse"),
             nb::arg("options"));
  module.def("append", &append, nb::arg("k_cache"), nb::arg("v_cache"), nb::arg("k_new"), nb::arg("v_new"),
             nb::arg("cache_seqlens"), nb::arg("tensors"), nb::arg("interleaved"), nb::arg("q_in_order"),
             nb::arg("options"));
  module.def("plan_quantization", &plan_quantization, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(),
             nb::arg("mode"), nb::arg("max_rmse"), nb::arg("max_error"), nb::arg("seed"), nb::arg("options"));
  bind_masks(module);
  bind_jax_handlers(module);
}
