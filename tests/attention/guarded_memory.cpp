// SPDX-License-Identifier: Apache-2.0
#include "guarded_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "call/arithmetic.h"

namespace strobe::test {
namespace {

constexpr std::size_t kRoom = 256;  // bytes on either side
constexpr std::size_t kAlignment = 64;

}  // namespace

GuardedMemory::GuardedMemory(std::size_t bytes, Guard guard) {
  if (guard == Guard::bytes) {
    allocate(bytes);
  } else {
    map(bytes, guard);
  }
}

void GuardedMemory::allocate(std::size_t bytes) {
  size_ = bytes + 2 * kRoom;
  start_ = kRoom;
  memory_.reset(static_cast<std::byte*>(::operator new(size_, std::align_val_t(kAlignment))));
  accessible_ = memory_.get();
}

void GuardedMemory::map(std::size_t bytes, Guard guard) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  size_ = round_up(bytes, page);
  start_ = guard == Guard::page_after ? size_ - bytes : 0;
  const std::size_t mapped = size_ + 2 * page;
  void* pages = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  memory_ = {static_cast<std::byte*>(pages), ReleaseMemory{mapped}};
  accessible_ = memory_.get() + page;
  if (size_ > 0 && mprotect(accessible_, size_, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
}

void ReleaseMemory::operator()(std::byte* memory) const {
  if (mapped == 0) {
    ::operator delete(memory, std::align_val_t(kAlignment));
  } else {
    munmap(memory, mapped);
  }
}

}  // namespace strobe::test
