// SPDX-License-Identifier: Apache-2.0
// Memory that one call or task cuts into pieces.
#pragma once

#include <cstddef>
#include <cstdint>

#include "call/arithmetic.h"

namespace strobe::cpu {

/// Hands out consecutive pieces of a block of memory, each aligned to a cache line as the block is. An arena without
/// memory hands out null and counts the bytes: plans measure with what the kernels take their pieces by.
class Arena {
 public:
  explicit Arena(std::byte* memory) : memory_(memory) {}

  template <class T>
  T* take(std::int64_t elements) {
    std::byte* piece = memory_ == nullptr ? nullptr : memory_ + bytes_;
    bytes_ += round_up(static_cast<std::size_t>(elements) * sizeof(T), kAlignment);
    return reinterpret_cast<T*>(piece);
  }

  /// Of all pieces together.
  std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kAlignment = 64;

  std::byte* memory_;
  std::size_t bytes_ = 0;
};

}  // namespace strobe::cpu
