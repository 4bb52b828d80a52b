// SPDX-License-Identifier: Apache-2.0
// Memory with something on both sides that notices a stray access.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace strobe::test {

/// What lies next to the bytes that may be touched.
enum class Guard : std::uint8_t {
  bytes,        // room on both sides: a stray write is found afterwards
  page_before,  // pages without access on both sides, the first byte next to one: a stray access ends the program
  page_after,   // the same with the last byte next to one
};

/// How GuardedMemory's bytes go back.
struct ReleaseMemory {
  std::size_t mapped = 0;  // bytes of pages; 0: from the heap
  void operator()(std::byte* memory) const;
};

class GuardedMemory {
 public:
  GuardedMemory() = default;
  GuardedMemory(std::size_t bytes, Guard guard);

  /// Everything that can be accessed, the bytes asked for among it.
  std::span<std::byte> accessible() const { return {accessible_, size_}; }

  /// The first of the bytes asked for.
  std::byte* data() const { return accessible_ + start_; }

 private:
  void allocate(std::size_t bytes);
  void map(std::size_t bytes, Guard guard);

  std::unique_ptr<std::byte, ReleaseMemory> memory_;
  std::byte* accessible_ = nullptr;
  std::size_t size_ = 0;
  std::size_t start_ = 0;
};

}  // namespace strobe::test
