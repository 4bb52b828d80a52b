// SPDX-License-Identifier: Apache-2.0
// Failures as Python exceptions.
#pragma once

#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include <utility>

#include "strobe/status.h"

namespace strobe::python {

template <class... Args>
[[noreturn]] void raise(PyObject* type, fmt::format_string<Args...> format, Args&&... args) {
  PyErr_SetString(type, fmt::format(format, std::forward<Args>(args)...).c_str());
  throw nanobind::python_error();
}

/// ValueError for invalid_argument, NotImplementedError for unsupported, MemoryError, RuntimeError: with the status's
/// message.
void raise_if_failed(const Status& status);

}  // namespace strobe::python
