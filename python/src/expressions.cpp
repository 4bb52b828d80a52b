// SPDX-License-Identifier: Apache-2.0
#include "expressions.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <utility>

#include "call_tensors.h"
#include "errors.h"
#include "passes.h"
#include "values.h"

namespace nb = nanobind;

namespace strobe::python {
namespace {

constexpr CallTensor kCapture{"", TensorRole::input, Elements::captured};
constexpr CallTensor kGradient{"", TensorRole::output, Elements::float32};

struct NamedObject {
  std::string name;
  nb::handle object;
};

/// By name, so that calls that list the same captures in another order share functions and kernels.
std::vector<NamedObject> items_of(const char* argument, nb::handle given) {
  std::vector<NamedObject> items;
  if (!given.is_valid() || given.is_none()) return items;
  if (PyDict_Check(given.ptr()) == 0) {
    raise(PyExc_TypeError, "{} is of type {}: it must be a dict of names and tensors", argument,
          nb::type_name(given.type()).c_str());
  }
  for (const auto& [name, object] : nb::borrow<nb::dict>(given)) {
    items.push_back({std::string(string({"a name in captures", name}, "text")), object});
  }
  std::ranges::sort(items, {}, &NamedObject::name);
  return items;
}

struct ImportedCaptures {
  std::vector<CaptureType> types;
  std::vector<ConstTensorView> views;
};

ImportedCaptures import_captures(Imports& imports, nb::handle given) {
  ImportedCaptures captures;
  for (NamedObject& item : items_of("captures", given)) {
    const std::string name = fmt::format("capture `{}`", item.name);
    bool scalar = false;
    Role role = role_of(kCapture);
    role.name = name.c_str();
    role.scalar = &scalar;
    if (item.object.is_none()) raise(PyExc_TypeError, "{} is None: it must be a tensor", name);
    captures.views.emplace_back(imports.view(item.object, role));
    const ConstTensorView& view = captures.views.back();
    captures.types.push_back({std::move(item.name), view.dtype, scalar ? 0 : view.rank});
  }
  return captures;
}

SharedFunction parsed(const std::string& score, const std::string& mask, std::vector<CaptureType> types) {
  Result<SharedFunction> function = parsed_once(score, mask, std::move(types));
  raise_if_failed(function.status());
  return *std::move(function);
}

/// The names of the captures that have a gradient.
nb::list differentiable(const ScoreFunction& function) {
  nb::list names;
  for (std::size_t i = 0; i < function.captures().size(); ++i) {
    if (function.has_gradient(static_cast<int>(i))) names.append(nb::str(function.captures()[i].name.c_str()));
  }
  return names;
}

}  // namespace

void Expression::read(Imports& imports, ScoreModifiers& modifiers) {
  ImportedCaptures imported = import_captures(imports, given_captures);
  if (score.empty() && mask.empty()) {
    if (given_captures.is_valid()) raise(PyExc_ValueError, "captures is given without a text: give score or mask, too");
    return;
  }
  function = parsed(score, mask, std::move(imported.types));
  captures = std::move(imported.views);
  modifiers.function = function.get();
  modifiers.captures = captures;
}

std::vector<TensorView> import_gradients(Imports& imports, const Expression& expression, nb::handle gradients) {
  std::vector<TensorView> views;
  for (const NamedObject& item : items_of("d_captures", gradients)) {
    if (expression.function == nullptr) raise(PyExc_ValueError, "d_captures is given without a text that has captures");
    const std::vector<CaptureType>& captures = expression.function->captures();
    const auto found = std::ranges::find(captures, item.name, &CaptureType::name);
    if (found == captures.end()) raise(PyExc_ValueError, "d_captures: there is no capture `{}`", item.name);
    const std::string name = fmt::format("the gradient of capture `{}`", item.name);
    bool scalar = false;
    Role role = role_of(kGradient);
    role.name = name.c_str();
    role.scalar = &scalar;
    views.resize(captures.size());
    views[static_cast<std::size_t>(found - captures.begin())] = imports.view(item.object, role);
  }
  return views;
}

void bind_score_function(nb::module_& module) {
  struct Parsed {
    SharedFunction function;
  };
  nb::class_<Parsed>(module, "ScoreFunction")
      .def(
          "__init__",
          [](Parsed* self, const std::string& score, const std::string& mask, nb::handle captures) {
            Imports imports(nullptr, false);
            new (self) Parsed{parsed(score, mask, import_captures(imports, captures).types)};
          },
          nb::arg("score"), nb::arg("mask"), nb::arg("captures").none())
      .def("explain", [](const Parsed& self) { return self.function->explain(); })
      .def_prop_ro("keeps_hidden", [](const Parsed& self) { return self.function->keeps_hidden(); })
      .def_prop_ro("differentiable", [](const Parsed& self) { return differentiable(*self.function); });
}

}  // namespace strobe::python
