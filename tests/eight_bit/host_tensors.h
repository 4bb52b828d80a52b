// SPDX-License-Identifier: Apache-2.0
// Tensors in host memory, filled and converted.
#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include "attention/random.h"
#include "io/host_tensor.h"
#include "strobe/float16.h"

namespace strobe::test {

inline float* floats_of(io::HostTensor& tensor) { return reinterpret_cast<float*>(tensor.bytes.data()); }
inline const float* floats_of(const io::HostTensor& tensor) {
  return reinterpret_cast<const float*>(tensor.bytes.data());
}

inline io::HostTensor normal_numbers(std::vector<std::int64_t> shape, Random& random) {
  io::HostTensor tensor = io::make_tensor(DType::float32, std::move(shape));
  for (std::size_t i = 0; i < io::element_count(tensor); ++i) {
    floats_of(tensor)[i] = static_cast<float>(random.normal());
  }
  return tensor;
}

/// float32 rounded to `dtype`, or a 16-bit dtype widened to float32.
inline io::HostTensor converted(const io::HostTensor& from, DType dtype) {
  io::HostTensor to = io::make_tensor(dtype, from.shape);
  const auto convert = [&](const auto* in, auto* out, const auto& one) {
    for (std::size_t i = 0; i < io::element_count(from); ++i) out[i] = one(in[i]);
  };
  const auto* const wide = floats_of(from);
  auto* const half = reinterpret_cast<float16*>(to.bytes.data());
  auto* const brain = reinterpret_cast<bfloat16*>(to.bytes.data());
  if (from.dtype == DType::bfloat16) {
    convert(reinterpret_cast<const bfloat16*>(from.bytes.data()), floats_of(to),
            [](bfloat16 x) { return to_float(x); });
  } else if (dtype == DType::float16) {
    convert(wide, half, [](float x) { return to_float16(x); });
  } else if (dtype == DType::bfloat16) {
    convert(wide, brain, [](float x) { return to_bfloat16(x); });
  } else {
    to.bytes = from.bytes;
  }
  return to;
}

}  // namespace strobe::test
