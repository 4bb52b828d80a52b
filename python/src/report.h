// SPDX-License-Identifier: Apache-2.0
// What the library finds of GPUs, for strobe.info().
#pragma once

#include <nanobind/nanobind.h>

namespace strobe::python {

/// `GpuReport` by the names that `strobe info --json` gives its fields.
nanobind::dict gpu_report();

}  // namespace strobe::python
