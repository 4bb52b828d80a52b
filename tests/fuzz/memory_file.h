// SPDX-License-Identifier: Apache-2.0
// A file without a disk: the readers take paths, and a fuzz target writes thousands of files a second.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace strobe::fuzz {

/// Holds the bytes under path() while it lives.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::uint8_t> bytes);
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile();

  std::filesystem::path path() const;

 private:
  int descriptor_;
};

}  // namespace strobe::fuzz
