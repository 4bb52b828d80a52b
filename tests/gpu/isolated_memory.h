// SPDX-License-Identifier: Apache-2.0
// Device memory beside which nothing is mapped: whatever touches an address outside of it stops the program with an
// illegal address, TMA's reads among them, which compute-sanitizer does not see.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/device.h"

namespace strobe::test {

/// While it lives, blocks that MemAlloc gives lie apart, between addresses that are not mapped.
class IsolatedMemory {
 public:
  /// Where a block lies in what is mapped for it, whose size is a multiple of some megabytes.
  enum class At : std::uint8_t { first, last };

  IsolatedMemory(const runtime::CudaDevice& device, At at);
  ~IsolatedMemory();
  IsolatedMemory(const IsolatedMemory&) = delete;
  IsolatedMemory& operator=(const IsolatedMemory&) = delete;

 private:
  const runtime::CudaDevice& device_;
};

}  // namespace strobe::test
