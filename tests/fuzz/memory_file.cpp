// SPDX-License-Identifier: Apache-2.0
#include "memory_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "expect.h"

namespace strobe::fuzz {

MemoryFile::MemoryFile(std::span<const std::uint8_t> bytes) : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
  expect(descriptor_ >= 0, "the system makes a file in memory");
  expect(::write(descriptor_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
         "a file in memory takes every byte");
}

MemoryFile::~MemoryFile() { ::close(descriptor_); }

std::filesystem::path MemoryFile::path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

}  // namespace strobe::fuzz
