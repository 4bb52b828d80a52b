// SPDX-License-Identifier: Apache-2.0
// What a tensor map of 128 bytes holds here: the arguments that it was made of.
#pragma once

#include <cstdint>

namespace strobe::emulator {

inline constexpr std::uint32_t kTensorMapMagic = 0x54455850;

struct TensorMap {
  std::uint32_t magic = 0;
  std::uint8_t type = 0;
  std::uint8_t rank = 0;
  std::uint8_t swizzle = 0;
  std::uint8_t element_bytes = 0;
  std::uint64_t address = 0;
  std::uint64_t strides[4] = {};  // bytes, of axis 1 and up
  std::uint64_t extents[5] = {};
  std::uint16_t box[5] = {};
};
static_assert(sizeof(TensorMap) <= 128);

}  // namespace strobe::emulator
