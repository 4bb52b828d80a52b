// SPDX-License-Identifier: Apache-2.0
// Memory that one call or task cuts into pieces.
#pragma once

#include <cstddef>
#include <cstdint>

#include "call/checked.h"

namespace strobe::cpu {

/// Hands out consecutive pieces of a block of memory, each aligned to a cache line as the block is. An arena without
/// memory hands out null and counts the bytes: plans measure with what the kernels take their pieces by.
class Arena {
 public:
  explicit Arena(std::byte* memory) : memory_(memory) {}

  /// A piece of as many elements as the product of `extents`. Throws SizeOverflow where 63 bits do not count its bytes.
  template <class T, class... Extents>
  T* take(Extents... extents) {
    std::byte* piece = memory_ == nullptr ? nullptr : memory_ + bytes_;
    const Checked size = (Checked(sizeof(T)) * ... * extents);
    bytes_ = (bytes_ + round_up(size, kAlignment)).template value<std::size_t>();
    return reinterpret_cast<T*>(piece);
  }

  /// Of all pieces together.
  std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::int64_t kAlignment = 64;

  std::byte* memory_;
  std::size_t bytes_ = 0;
};

}  // namespace strobe::cpu
