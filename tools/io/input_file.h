// SPDX-License-Identifier: Apache-2.0
// A file whose bytes are read where they are asked for. It is never mapped: a file that another process cuts short is
// an error here, and in a mapping the end of this process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

#include "io/descriptor.h"
#include "strobe/status.h"

namespace strobe::io {

class InputFile {
 public:
  /// invalid_argument, with the system's words, when `path` is not a regular file that can be read.
  static Result<InputFile> open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }

  /// Bytes that the file had when it was opened.
  std::uint64_t size() const { return size_; }

  /// Fills `to` with the bytes from `offset` on. invalid_argument when they are not there, or no longer.
  Status read(std::uint64_t offset, std::span<std::byte> to) const;

  /// "'PATH' REASON" as invalid_argument: how every complaint about a file begins.
  Status failure(const std::string& reason) const;

 private:
  InputFile(std::filesystem::path path, Descriptor file, std::uint64_t size)
      : path_(std::move(path)), file_(std::move(file)), size_(size) {}

  std::filesystem::path path_;
  Descriptor file_;
  std::uint64_t size_;
};

}  // namespace strobe::io
