// SPDX-License-Identifier: Apache-2.0
// A file's bytes as read-only memory, brought in by the system page by page.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "strobe/status.h"

namespace strobe::io {

/// Owns one read-only mapping of a whole file; bytes() stays valid while it lives and through moves.
class MappedFile {
 public:
  /// invalid_argument, with the system's words, when `path` is not a regular file that can be read.
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;  // empty for an empty file, which cannot be mapped
};

}  // namespace strobe::io
