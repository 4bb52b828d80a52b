// SPDX-License-Identifier: Apache-2.0
// Dtypes of tensors as kernels name them.
#pragma once

#include "kernels/math/element.h"
#include "strobe/tensor.h"

namespace strobe::gpu {

/// Of a dtype that attention's rows may have.
constexpr Element element_of(DType dtype) {
  switch (dtype) {
    case DType::float32: return Element::fp32;
    case DType::float16: return Element::fp16;
    case DType::int8: return Element::int8;
    case DType::float8_e4m3: return Element::e4m3;
    default: return Element::bf16;
  }
}

}  // namespace strobe::gpu
