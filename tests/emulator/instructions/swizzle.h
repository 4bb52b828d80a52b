// SPDX-License-Identifier: Apache-2.0
// How tiles are permuted in shared memory: pieces of 16 bytes within a span, by the rows of 128 bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace strobe::emulator {

/// Of a tensor map's mode: none, 32, 64 or 128 bytes.
inline std::size_t swizzle_span(int mode) { return mode == 0 ? 0 : std::size_t{16} << mode; }

inline std::uint64_t swizzled(std::uint64_t address, int mode) {
  const std::uint64_t pieces = mode == 0 ? 0 : (std::uint64_t{1} << mode) - 1;
  return address ^ ((address >> 7 & pieces) << 4);
}

}  // namespace strobe::emulator
