// SPDX-License-Identifier: Apache-2.0
// Dropout's mask and the usual block masks, written into host arrays.
#pragma once

#include <nanobind/nanobind.h>

namespace strobe::python {

/// Adds dropout_mask and the builders of block masks to the module.
void bind_masks(nanobind::module_& module);

}  // namespace strobe::python
