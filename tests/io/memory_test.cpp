// SPDX-License-Identifier: Apache-2.0
#include "io/memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>

namespace strobe::io {
namespace {

TEST(Memory, ThePeakRemembersWhatWasFreed) {
  constexpr std::int64_t kBytes = 64 << 20;
  ASSERT_TRUE(reset_peak());
  const std::int64_t before = resident_bytes();
  ASSERT_GT(before, 0);
  // Straight from the kernel and back: an allocator may keep what it is given.
  void* const block = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  std::memset(block, 1, kBytes);
  ASSERT_EQ(::munmap(block, kBytes), 0);
  EXPECT_GE(peak_resident_bytes() - before, kBytes * 9 / 10);
  ASSERT_TRUE(reset_peak());
  EXPECT_LT(peak_resident_bytes() - before, kBytes / 2);
}

TEST(Memory, SomeIsAvailable) { EXPECT_GT(available_bytes(), 0); }

}  // namespace
}  // namespace strobe::io
