// SPDX-License-Identifier: Apache-2.0
// Sparse attention and row formats on Python tensors.
#pragma once

#include <nanobind/nanobind.h>

namespace strobe::python {

void bind_sparse(nanobind::module_& module);

}  // namespace strobe::python
