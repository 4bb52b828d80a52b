// SPDX-License-Identifier: Apache-2.0
// Strides of row-major memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "call/checked.h"
#include "strobe/tensor.h"

namespace strobe::python {

/// The strides of `view`'s shape in dense, row-major memory. Returns false where 64 bits do not hold one. A tensor
/// without elements has the strides that it would have if its empty axes had one.
[[nodiscard]] inline bool set_dense_strides(TensorView& view) {
  Checked stride = 1;
  for (auto axis = static_cast<std::size_t>(view.rank); stride.fits() && axis-- > 0;) {
    view.strides[axis] = stride.value();
    stride = stride * std::max<std::int64_t>(view.shape[axis], 1);
  }
  return stride.fits();
}

}  // namespace strobe::python
