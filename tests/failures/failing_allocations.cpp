// SPDX-License-Identifier: Apache-2.0
#include "failing_allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>

namespace strobe::test {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

std::atomic<std::int64_t> live{0};
std::atomic<std::int64_t> until_failure{kNever};  // allocations that succeed before; negative once it has failed
std::atomic<bool> for_good{false};

bool fails_now() {
  if (until_failure.load() == kNever) return false;
  const std::int64_t number = until_failure.fetch_sub(1);
  return number == 0 || (number < 0 && for_good.load());
}

void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  if (fails_now()) return nullptr;
  void* memory = nullptr;
  if (alignment <= alignof(std::max_align_t)) {
    memory = std::malloc(bytes > 0 ? bytes : 1);
  } else if (::posix_memalign(&memory, alignment, bytes > 0 ? bytes : 1) != 0) {
    return nullptr;
  }
  if (memory != nullptr) ++live;
  return memory;
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  void* const memory = allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(void* memory) noexcept {
  if (memory == nullptr) return;
  --live;
  std::free(memory);
}

constexpr std::size_t kNatural = alignof(std::max_align_t);
constexpr std::size_t aligned(std::align_val_t alignment) { return static_cast<std::size_t>(alignment); }

}  // namespace

FailingAllocation::FailingAllocation(std::int64_t number, Failure failure) {
  for_good = failure == Failure::from_then;
  until_failure = number;
}

FailingAllocation::~FailingAllocation() { until_failure = kNever; }

bool FailingAllocation::happened() const { return until_failure.load() < 0; }

std::int64_t live_allocations() { return live.load(); }

}  // namespace strobe::test

// Every replaceable form; the sized and nothrow forms of delete call these.
using namespace strobe::test;

void* operator new(std::size_t bytes) { return allocate_or_throw(bytes, kNatural); }
void* operator new[](std::size_t bytes) { return allocate_or_throw(bytes, kNatural); }
void* operator new(std::size_t bytes, std::align_val_t a) { return allocate_or_throw(bytes, aligned(a)); }
void* operator new[](std::size_t bytes, std::align_val_t a) { return allocate_or_throw(bytes, aligned(a)); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, kNatural); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, kNatural); }
void* operator new(std::size_t bytes, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate(bytes, aligned(a));
}
void* operator new[](std::size_t bytes, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate(bytes, aligned(a));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
