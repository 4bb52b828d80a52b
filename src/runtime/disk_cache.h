// SPDX-License-Identifier: Apache-2.0
// Compiled kernels kept on disk between processes.
//
// What it promises: a lookup gives exactly the bytes that were stored under that key, or nothing. Nothing is trusted
// that another user could have written, and no failure of the disk is an error of the caller: a cache that cannot be
// read or written is one that is always empty.
#pragma once

#include <optional>
#include <string>

#include "runtime/file_descriptor.h"

namespace strobe::runtime {

class DiskCache {
 public:
  /// A cache that keeps nothing.
  DiskCache() = default;

  /// Opens `folder`, made for the owner alone if it is not there. The cache keeps nothing, and reason() says why, when
  /// the folder cannot be had, is a symbolic link, belongs to another user or lets others in.
  static DiskCache open(const std::string& folder);

  /// $STROBE_CACHE_DIR/kernels, or $XDG_CACHE_HOME/strobe/kernels, or ~/.cache/strobe/kernels; empty without a home.
  static std::string default_folder();

  /// The bytes stored under `key` (letters and digits). A damaged file is removed and counts as not there.
  std::optional<std::string> load(const std::string& key) const;

  /// Stores bytes made by make_archive: whole or not at all, whoever else writes at the same time. False if it cannot.
  bool store(const std::string& key, const std::string& bytes) const;

  /// Waits while another process, or another thread, has the claim on that key, which ends when it closes what this
  /// gave it: at most a minute, so that one that was stopped stops no others. Where the folder cannot be locked, nobody
  /// waits.
  FileDescriptor claim(const std::string& key) const;

  /// Waits until no other process is between this call and its end: builds that fill one cache at the same time then
  /// compile everything once. For the lifetime of the process.
  void keep_to_this_process() const;

  bool usable() const { return folder_.is_open(); }
  const std::string& reason() const { return reason_; }

 private:
  explicit DiskCache(std::string reason) : reason_(std::move(reason)) {}
  explicit DiskCache(FileDescriptor folder) : folder_(std::move(folder)) {}

  // The folder itself, opened and checked once: a path could come to mean another folder later.
  FileDescriptor folder_;
  std::string reason_ = "no folder is set for it";
};

}  // namespace strobe::runtime
