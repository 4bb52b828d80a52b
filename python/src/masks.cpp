// SPDX-License-Identifier: Apache-2.0
#include "masks.h"

#include "errors.h"
#include "imports.h"
#include "strobe/block_mask.h"
#include "strobe/dropout.h"

namespace nb = nanobind;

namespace strobe::python {
namespace {

/// write(view) on a mask that a Python array holds.
template <class Write>
void write_mask(nb::handle mask, const Write& write) {
  Imports imports(nullptr, false);
  raise_if_failed(write(imports.view(mask, {"mask", "uint8 or bool", true})));
}

}  // namespace

void bind_masks(nb::module_& module) {
  module.def(
      "dropout_mask",
      [](nb::handle mask, float dropout, std::uint64_t seed, std::uint64_t offset) {
        write_mask(mask, [&](const TensorView& view) { return dropout_mask(dropout, {seed, offset}, view); });
      },
      nb::arg("mask"), nb::arg("dropout"), nb::arg("seed"), nb::arg("offset"));
  module.def(
      "local_block_mask",
      [](nb::handle mask, std::int64_t left, std::int64_t right) {
        write_mask(mask, [&](const TensorView& view) { return local_block_mask(view, left, right); });
      },
      nb::arg("mask"), nb::arg("left"), nb::arg("right"));
  module.def(
      "strided_block_mask",
      [](nb::handle mask, std::int64_t stride) {
        write_mask(mask, [&](const TensorView& view) { return strided_block_mask(view, stride); });
      },
      nb::arg("mask"), nb::arg("stride"));
  module.def(
      "butterfly_block_mask",
      [](nb::handle mask) { write_mask(mask, [](const TensorView& view) { return butterfly_block_mask(view); }); },
      nb::arg("mask"));
}

}  // namespace strobe::python
