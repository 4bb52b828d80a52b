// SPDX-License-Identifier: Apache-2.0
// Shared-memory descriptors for WGMMA operands that TMA wrote in panels of 64 elements x rows, 128-byte swizzled.
//
// Fields: address >> 4 in bits 0-13, leading byte offset >> 4 in 16-29, stride byte offset >> 4 in 32-45, swizzle mode
// in 62-63 (1: 128 bytes). Offsets are added to the first field, so a step is `descriptor + (bytes >> 4)`.
#pragma once

#include <cuda/std/cstdint>

#include "kernels/sm90/tile/panel.h"

namespace strobe::sm90 {

using cuda::std::uint32_t;
using cuda::std::uint64_t;

constexpr int kSwizzleAtomBytes = 8 * kPanelRowBytes;  // eight rows repeat the pattern

/// A descriptor whose lower half moves: the upper never changes, so a step is one 32-bit addition.
struct Descriptor {
  uint32_t low;

  __device__ __forceinline__ Descriptor operator+(int step) const { return {low + static_cast<uint32_t>(step)}; }
  __device__ __forceinline__ operator uint64_t() const {
    constexpr uint64_t kHigh = (uint64_t{kSwizzleAtomBytes >> 4} << 32) | (uint64_t{1} << 62);
    return kHigh | low;
  }
};

__device__ __forceinline__ Descriptor descriptor(const void* tile, int leading_bytes) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(tile));
  return {((address & 0x3ffffU) >> 4) | (static_cast<uint32_t>(leading_bytes >> 4) << 16)};
}

/// Rows are M or N, columns are K: Q and K of Q K^T. The leading offset is not read in this mode.
__device__ __forceinline__ Descriptor descriptor_k_major(const void* tile) { return descriptor(tile, 16); }

/// Rows are K, columns are N: V of P V. `rows` of a panel separate its 64 columns from the next 64.
__device__ __forceinline__ Descriptor descriptor_mn_major(const void* tile, int rows) {
  return descriptor(tile, rows * kPanelRowBytes);
}

/// Rows of 16 bytes that lie one after the other, without a swizzle, as sixteen columns: the same eight twice.
struct RowsDescriptor {
  uint32_t low;

  __device__ __forceinline__ RowsDescriptor operator+(int step) const { return {low + static_cast<uint32_t>(step)}; }
  __device__ __forceinline__ operator uint64_t() const {
    constexpr uint64_t kHigh = uint64_t{8 * 16 >> 4} << 32;
    return kHigh | low;
  }
};

__device__ __forceinline__ RowsDescriptor descriptor_of_rows(const void* rows) { return {descriptor(rows, 0).low}; }

/// How far k-step `step` (16 columns) of a K-major tile of `rows` rows lies behind the first, in descriptor units.
constexpr int k_major_step(int step, int rows) {
  const int panel = step / 4;  // four steps of 32 bytes are one panel
  return (panel * rows * kPanelRowBytes + (step % 4) * 32) >> 4;
}

/// How far k-step `step` (16 rows) of an MN-major tile lies behind the first, in descriptor units.
constexpr int mn_major_step(int step) { return (step * 2 * kSwizzleAtomBytes) >> 4; }

}  // namespace strobe::sm90
