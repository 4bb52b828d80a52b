// SPDX-License-Identifier: Apache-2.0
// A call's workspace from the allocator of its tensors' framework.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>

#include "imports.h"

namespace strobe::python {

/// A Python function that allocates a call's workspace, as the library calls it: with the interpreter's lock, which a
/// running call does not hold. What it gave lives as long as this object. It is asked only where the tensors' framework
/// cannot be asked without Python, or has no memory left: then it raises the framework's own error.
class WorkspaceFunction {
 public:
  WorkspaceFunction(nanobind::handle function, Imports& imports) : function_(function), imports_(imports) {}

  void* operator()(std::size_t bytes) {
    if (void* memory = imports_.allocate(bytes); memory != nullptr) return memory;
    const nanobind::gil_scoped_acquire acquired;
    memory_ = function_(bytes);
    return imports_.view(memory_, {"workspace", "uint8", true}).data;
  }

 private:
  nanobind::handle function_;
  Imports& imports_;
  nanobind::object memory_;
};

}  // namespace strobe::python
