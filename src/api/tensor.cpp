// SPDX-License-Identifier: Apache-2.0
#include "strobe/tensor.h"

namespace strobe {

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::float32: return "float32";
    case DType::float16: return "float16";
    case DType::bfloat16: return "bfloat16";
    case DType::int32: return "int32";
    case DType::float8_e4m3: return "float8_e4m3";
    case DType::uint8: return "uint8";
    case DType::int8: return "int8";
    case DType::int64: return "int64";
  }
  return "unknown";
}

}  // namespace strobe
