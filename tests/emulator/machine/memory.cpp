// SPDX-License-Identifier: Apache-2.0
#include "machine/memory.h"

#include <cstdlib>
#include <cstring>

#include "machine/fault.h"

namespace strobe::emulator {
namespace {

constexpr std::size_t kApart = 4096;           // bytes before and after an allocation that belong to none
constexpr std::size_t kAlignment = 256;        // as the driver's
constexpr std::size_t kPoisoned = 64U << 20U;  // memory up to this size begins as NaN

}  // namespace

GlobalMemory& GlobalMemory::instance() {
  static GlobalMemory& memory = *new GlobalMemory;
  return memory;
}

std::uint64_t GlobalMemory::allocate(std::size_t bytes) {
  const std::size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment + 2 * kApart;
  void* const memory = std::aligned_alloc(kApart, (whole + kApart - 1) / kApart * kApart);
  if (memory == nullptr) return 0;
  const std::uint64_t address = reinterpret_cast<std::uint64_t>(memory) + kApart;
  if (bytes <= kPoisoned) std::memset(reinterpret_cast<void*>(address), 0xff, bytes);
  add(address, bytes);
  owned_[address] = memory;
  used_ += bytes;
  return address;
}

bool GlobalMemory::free(std::uint64_t address) {
  const auto found = owned_.find(address);
  if (found == owned_.end()) return false;
  used_ -= allocations_[address] - address;
  remove(address);
  std::free(found->second);
  owned_.erase(found);
  return true;
}

void GlobalMemory::add(std::uint64_t address, std::size_t bytes) { allocations_[address] = address + bytes; }

void GlobalMemory::remove(std::uint64_t address) { allocations_.erase(address); }

Allocation GlobalMemory::find(std::uint64_t address) const {
  auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return {};
  --after;
  if (address >= after->second) return {};
  return {after->first, after->second};
}

std::string GlobalMemory::describe(std::uint64_t address) const {
  std::string text;
  const auto after = allocations_.upper_bound(address);
  if (after != allocations_.begin()) {
    const auto before = std::prev(after);
    text = text_of("; %llu bytes behind the beginning of an allocation of %llu",
                   static_cast<unsigned long long>(address - before->first),
                   static_cast<unsigned long long>(before->second - before->first));
  }
  if (after != allocations_.end()) {
    text += text_of("; %llu bytes before one of %llu", static_cast<unsigned long long>(after->first - address),
                    static_cast<unsigned long long>(after->second - after->first));
  }
  return text;
}

std::recursive_mutex& machine_mutex() {
  static std::recursive_mutex& mutex = *new std::recursive_mutex;
  return mutex;
}

}  // namespace strobe::emulator
