// SPDX-License-Identifier: Apache-2.0
// Writes files that are either whole or not there.
#pragma once

#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>

#include "io/descriptor.h"
#include "strobe/status.h"

namespace strobe::io {

/// A file that is being written, under a name beside `path` that nobody can guess; commit() renames it to `path`, so
/// that a reader sees the old file or the new one, never half of it. Without commit() nothing stays of it. What has the
/// name of either file is never written through: neither a link that was put there, nor a device.
///
/// Failures are invalid_argument when the path cannot be written, device_error when the disk is full or fails; the
/// message ends with the system's words.
class AtomicFile {
 public:
  static Result<AtomicFile> create(const std::filesystem::path& path);

  AtomicFile(AtomicFile&& other) noexcept
      : path_(std::move(other.path_)),
        folder_(std::move(other.folder_)),
        file_(std::move(other.file_)),
        temporary_(std::exchange(other.temporary_, {})) {}
  AtomicFile& operator=(AtomicFile&&) = delete;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  Status write(std::span<const std::byte> bytes);

  /// Closes what was written; a later commit() then only renames.
  Status close();

  Status commit();

 private:
  AtomicFile(std::filesystem::path path, Descriptor folder) : path_(std::move(path)), folder_(std::move(folder)) {}

  Status open_temporary();

  std::filesystem::path path_;
  Descriptor folder_;
  Descriptor file_{-1};
  std::string temporary_;  // its name in the folder; "" once there is no such file
};

/// Whether a file could be written at `path` now; nothing stays of the trial. Failures are AtomicFile's.
Status check_writable(const std::filesystem::path& path);

/// Writes `parts` one after another and commits.
Status write_file(const std::filesystem::path& path, std::initializer_list<std::span<const std::byte>> parts);

}  // namespace strobe::io
