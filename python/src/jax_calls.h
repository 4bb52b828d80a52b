// SPDX-License-Identifier: Apache-2.0
// The two passes as handlers of XLA's foreign-function interface.
#pragma once

#include <nanobind/nanobind.h>

namespace strobe::python {

/// Adds jax_handlers() to the module: {name: capsule} as jax.ffi.register_ffi_target takes them, for host buffers and
/// for CUDA's.
void bind_jax_handlers(nanobind::module_& module);

}  // namespace strobe::python
