// SPDX-License-Identifier: Apache-2.0
// AMX's matrix unit in plain C++, so that the AMX kernels' logic runs on every machine. As the processor's, it takes
// subnormal numbers for zero and makes none; sums are in another order.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "cpu/bfloat16/scratch.h"
#include "cpu/kernels/vector-inl.h"
#include "strobe/float16.h"

namespace strobe::test {

struct Tile {
  bfloat16 halves[16][32];
};

inline thread_local Tile tiles[8];

inline float without_subnormal(float value) {
  return std::fabs(value) < std::numeric_limits<float>::min() ? std::copysign(0.0F, value) : value;
}

struct EmulatedRegisters {
  struct Session {
    Session() { std::memset(static_cast<void*>(tiles), 0xFF, sizeof(tiles)); }
    ~Session() { std::memset(static_cast<void*>(tiles), 0xFF, sizeof(tiles)); }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
  };

  template <int kTile>
  static void load(const void* from, std::size_t stride) {
    for (int r = 0; r < 16; ++r) std::memcpy(tiles[kTile].halves[r], static_cast<const char*>(from) + r * stride, 64);
  }
  template <int kTile>
  static void store(void* to, std::size_t stride) {
    for (int r = 0; r < 16; ++r) std::memcpy(static_cast<char*>(to) + r * stride, tiles[kTile].halves[r], 64);
  }
  template <int kTile>
  static void zero() {
    std::memset(static_cast<void*>(&tiles[kTile]), 0, sizeof(Tile));
  }
  template <int kSum, int kLeft, int kRight>
  static void multiply() {
    float right[32][16];
    for (int k = 0; k < 32; ++k) {
      for (int n = 0; n < 16; ++n)
        right[k][n] = without_subnormal(to_float(tiles[kRight].halves[k / 2][2 * n + k % 2]));
    }
    for (int m = 0; m < 16; ++m) {
      float sums[16];
      std::memcpy(sums, tiles[kSum].halves[m], sizeof(sums));
      for (int k = 0; k < 32; ++k) {
        const float left = without_subnormal(to_float(tiles[kLeft].halves[m][k]));
        for (int n = 0; n < 16; ++n) sums[n] = without_subnormal(without_subnormal(sums[n]) + left * right[k][n]);
      }
      std::memcpy(tiles[kSum].halves[m], sums, sizeof(sums));
    }
  }

  static void narrow(cpu::HWY_NAMESPACE::Vec value, bfloat16* to) {
    cpu::HWY_NAMESPACE::store(value, to);
    for (int i = 0; i < cpu::HWY_NAMESPACE::kLanes; ++i) to[i] = to_bfloat16(without_subnormal(to_float(to[i])));
  }

  static void narrow_pairs(cpu::HWY_NAMESPACE::Vec even, cpu::HWY_NAMESPACE::Vec odd, bfloat16* to) {
    namespace hn = hwy::HWY_NAMESPACE;
    constexpr auto kLanes = cpu::HWY_NAMESPACE::kLanes;
    HWY_ALIGN std::uint32_t words[2][kLanes];
    hn::Store(even, cpu::HWY_NAMESPACE::Floats(), reinterpret_cast<float*>(words[0]));
    hn::Store(odd, cpu::HWY_NAMESPACE::Floats(), reinterpret_cast<float*>(words[1]));
    for (int i = 0; i < 2 * kLanes; ++i) {  // halves away from zero, by integers
      const auto bits = static_cast<std::uint16_t>((words[i % 2][i / 2] + 0x8000U) >> 16);
      std::memcpy(static_cast<void*>(to + i), &bits, sizeof(bits));
    }
  }

  static void transpose(void* tile) {
    std::uint32_t pairs[16][16];
    std::memcpy(pairs, tile, sizeof(pairs));
    for (int r = 0; r < 16; ++r) {
      for (int c = 0; c < r; ++c) std::swap(pairs[r][c], pairs[c][r]);
    }
    std::memcpy(tile, pairs, sizeof(pairs));
  }
};

}  // namespace strobe::test
