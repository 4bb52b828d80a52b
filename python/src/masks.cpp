// SPDX-License-Identifier: Apache-2.0
#include "masks.h"

#include <cstdint>

#include "errors.h"
#include "imports.h"
#include "strobe/block_mask.h"
#include "strobe/dropout.h"
#include "values.h"

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
      [](nb::handle mask, nb::handle dropout, nb::handle seed, nb::handle offset) {
        const float probability = float32_number({"dropout", dropout});
        const RandomState random{unsigned_integer({"seed", seed}), unsigned_integer({"offset", offset})};
        write_mask(mask, [&](const TensorView& view) { return dropout_mask(probability, random, view); });
      },
      nb::arg("mask"), nb::arg("dropout").none(), nb::arg("seed").none(), nb::arg("offset").none());
  module.def(
      "local_block_mask",
      [](nb::handle mask, nb::handle left, nb::handle right) {
        const std::int64_t before = integer({"left", left});
        const std::int64_t after = integer({"right", right});
        write_mask(mask, [&](const TensorView& view) { return local_block_mask(view, before, after); });
      },
      nb::arg("mask"), nb::arg("left").none(), nb::arg("right").none());
  module.def(
      "strided_block_mask",
      [](nb::handle mask, nb::handle stride) {
        const std::int64_t distance = integer({"stride", stride});
        write_mask(mask, [&](const TensorView& view) { return strided_block_mask(view, distance); });
      },
      nb::arg("mask"), nb::arg("stride").none());
  module.def(
      "butterfly_block_mask",
      [](nb::handle mask) { write_mask(mask, [](const TensorView& view) { return butterfly_block_mask(view); }); },
      nb::arg("mask"));
}

}  // namespace strobe::python
