// SPDX-License-Identifier: Apache-2.0
// The quantiser on Python tensors.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace strobe::python {

/// Reads q, k and v and writes the eight others; the element is q8's dtype, and keys are centred if q_shift is not
/// None. The scales' units are values of ScaleUnit. Of the options it reads threads, engine and stream.
/// `allocate_workspace`: as backward()'s.
void quantize(nanobind::handle q, nanobind::handle k, nanobind::handle v, nanobind::handle q8, nanobind::handle k8,
              nanobind::handle v8, nanobind::handle q_descale, nanobind::handle k_descale, nanobind::handle v_descale,
              nanobind::handle q_shift, int q_scales, int k_scales, int v_scales, nanobind::handle rotate_qk,
              nanobind::handle rotate_v, nanobind::handle seed, nanobind::handle allocate_workspace,
              const nanobind::kwargs& keywords);

/// plan_quantization(): a dict of the plan's fields, its options by their names. `keywords` are the options of a
/// forward.
nanobind::dict plan_quantization(nanobind::handle q, nanobind::handle k, nanobind::handle v, int mode,
                                 nanobind::handle max_rmse, nanobind::handle max_error, nanobind::handle seed,
                                 const nanobind::kwargs& keywords);

}  // namespace strobe::python
