// A tensor that owns its host memory: what the file readers give and the programs compute on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "strobe/tensor.h"

namespace strobe::io {

struct HostTensor {
  DType dtype = DType::float32;
  std::vector<std::int64_t> shape;  // row-major, at most kMaxRank extents
  std::vector<std::byte> bytes;
};

}  // namespace strobe::io
