// SPDX-License-Identifier: Apache-2.0
// Descriptors for the tensor memory accelerator (TMA): what a kernel's cp.async.bulk.tensor reads of a tensor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/device.h"
#include "strobe/tensor.h"

namespace strobe::runtime {

inline constexpr int kMaxTensorMapRank = 5;

enum class Swizzle : std::uint8_t { none, bytes_32, bytes_64, bytes_128 };

/// A tensor in global memory and the box of it that one instruction moves. Axis 0 is the innermost.
/// Elements of a box outside the tensor read as 0 and are not written.
struct TiledTensor {
  void* data = nullptr;  // 16-byte aligned
  DType dtype = DType::bfloat16;
  int rank = 0;                                            // 1..5
  std::array<std::uint64_t, kMaxTensorMapRank> extents{};  // elements, 1..2^32
  std::array<std::uint64_t, kMaxTensorMapRank> strides{};  // elements; axis 0's is 1, others multiples of 16 bytes
  std::array<std::uint32_t, kMaxTensorMapRank> box{};      // elements, 1..256
  Swizzle swizzle = Swizzle::bytes_128;                    // box[0] fits in its span
  bool reads_ahead = true;                                 // L2 fetches 256 bytes where 128 are missing
  bool whole_lines = true;  // or 128 bytes where some of them are: else what is missing alone

  bool operator==(const TiledTensor&) const = default;
};

/// A descriptor's size, and the alignment that the driver asks for.
inline constexpr std::size_t kTensorMapBytes = 128;
inline constexpr std::size_t kTensorMapAlignment = 64;

/// Encodes the descriptor on the host into kTensorMapBytes at `map`; it holds the data's address. A tensor that this
/// thread has encoded lately is not encoded again. invalid_argument names the rule that is broken, and leaves `map` as
/// it was.
Status encode_tensor_map(const Driver& driver, const TiledTensor& tensor, void* map);

/// The same into a type that a kernel takes as `const __grid_constant__`.
template <class Map>
Status encode_tensor_map(const Driver& driver, const TiledTensor& tensor, Map& map) {
  static_assert(sizeof(Map) == kTensorMapBytes && alignof(Map) == kTensorMapAlignment);
  return encode_tensor_map(driver, tensor, static_cast<void*>(&map));
}

}  // namespace strobe::runtime
