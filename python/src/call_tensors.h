// SPDX-License-Identifier: Apache-2.0
// Python tensors as those of a call, by name.
#pragma once

#include <nanobind/nanobind.h>

#include <initializer_list>
#include <string_view>

#include "call/tensors.h"
#include "errors.h"
#include "imports.h"

namespace strobe::python {

/// What messages say of a tensor.
inline Role role_of(const CallTensor& tensor) {
  const char* const dtypes = [&tensor] {
    switch (tensor.elements) {
      case Elements::floats: return "float32, float16 or bfloat16";
      case Elements::like_q: return "q's dtype";
      case Elements::float32: return "float32";
      case Elements::float32_or_like_q: return "float32 or q's dtype";
      case Elements::int32: return "int32";
      case Elements::int64: return "int64";
      case Elements::bytes: return "uint8 or bool";
      case Elements::eight_bit: return "int8 or float8_e4m3fn";
      case Elements::cached: return "float32, float16, bfloat16, int8 or float8_e4m3fn";
      case Elements::captured: return "float32, float16, bfloat16, int32, int64, uint8 or bool";
    }
    return "";
  }();
  return {tensor.name.data(), dtypes, tensor.role == TensorRole::output};
}

/// What lengths and tables are where nobody says another dtype, in PyTorch and NumPy alike.
[[noreturn]] inline void raise_int64(std::string_view name) {
  raise(PyExc_ValueError, "{} is int64: it must be int32, as .to(torch.int32) or .astype(numpy.int32) makes it", name);
}

/// An object given for a tensor; None where it is not given.
struct GivenTensor {
  std::string_view name;
  nanobind::handle object;
  const char* python_name = nullptr;  // where messages call it otherwise
};

/// Imports into `arguments` what is given for its tensors, in the order of `given`.
template <class Arguments>
void import_tensors(Imports& imports, Arguments& arguments, std::initializer_list<GivenTensor> given) {
  for (const GivenTensor& one : given) {
    for_each_tensor(arguments, [&](const CallTensor& tensor, auto& view) {
      if (tensor.name != one.name) return;
      Role role = role_of(tensor);
      if (one.python_name != nullptr) role.name = one.python_name;
      view = imports.view(one.object, role);
      if (tensor.elements == Elements::int32 && view.dtype == DType::int64) raise_int64(tensor.name);
    });
  }
}

}  // namespace strobe::python
