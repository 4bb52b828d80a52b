// SPDX-License-Identifier: Apache-2.0
// A file whose bytes are read where they are asked for, or a pipe, whose bytes come in order. A file is never mapped:
// one that another process cuts short is an error here, and in a mapping the end of this process.
#pragma once

#include <sys/types.h>

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

  /// The same, but `path` may also be a pipe, or "-" for standard input, unless that is a terminal. A named pipe is
  /// waited for until somebody writes to it.
  static Result<InputFile> open_in_order(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }

  bool is_pipe() const { return pipe_; }

  /// Bytes that the file had when it was opened; of a pipe, whose end shows when it is read, more than any file has.
  std::uint64_t size() const { return size_; }

  /// Fills `to` with the bytes from `offset` on. invalid_argument when they are not there, or no longer. A pipe takes
  /// offsets in order alone: each is where the last read ended.
  Status read(std::uint64_t offset, std::span<std::byte> to) const;

  /// Whether nothing follows `offset`, up to which everything was read.
  bool ends_at(std::uint64_t offset) const;

  /// "'PATH' REASON" as invalid_argument: how every complaint about a file begins.
  Status failure(const std::string& reason) const;

 private:
  InputFile(std::filesystem::path path, Descriptor file, std::uint64_t size, bool pipe)
      : path_(std::move(path)), file_(std::move(file)), size_(size), pipe_(pipe) {}

  ssize_t read_some(std::uint64_t offset, std::span<std::byte> to) const;

  std::filesystem::path path_;
  Descriptor file_;
  std::uint64_t size_;
  bool pipe_;
};

}  // namespace strobe::io
