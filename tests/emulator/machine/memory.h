// SPDX-License-Identifier: Apache-2.0
// Global memory: allocations of the host, at the host's addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace strobe::emulator {

// Generic addresses of other memory lie in windows that no allocation of the host is in.
inline constexpr std::uint64_t kSharedWindow = 0x7e00'0000'0000'0000;
inline constexpr std::uint64_t kLocalWindow = 0x7d00'0000'0000'0000;
inline constexpr std::uint64_t kWindowMask = 0xff00'0000'0000'0000;

struct Allocation {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool contains(std::uint64_t address, std::uint64_t bytes) const { return address >= begin && address + bytes <= end; }
};

/// Which addresses there are. Allocations are kept apart by bytes that belong to none.
class GlobalMemory {
 public:
  static GlobalMemory& instance();

  /// 0 where there is not so much.
  std::uint64_t allocate(std::size_t bytes);
  bool free(std::uint64_t address);
  /// Declares memory that is the emulator's own, or no longer.
  void add(std::uint64_t address, std::size_t bytes);
  void remove(std::uint64_t address);

  /// The allocation that an address is in; empty where it is in none.
  Allocation find(std::uint64_t address) const;
  /// For messages: where the address lies beside the nearest allocations.
  std::string describe(std::uint64_t address) const;
  std::size_t used() const { return used_; }

 private:
  std::map<std::uint64_t, std::uint64_t> allocations_;  // begin: end
  std::map<std::uint64_t, void*> owned_;
  std::size_t used_ = 0;
};

/// The one lock of driver and kernels.
std::recursive_mutex& machine_mutex();

}  // namespace strobe::emulator
