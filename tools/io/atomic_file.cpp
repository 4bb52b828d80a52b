// SPDX-License-Identifier: Apache-2.0
#include "io/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace strobe::io {
namespace {

constexpr int kAttempts = 10;  // at a name that is not there

Status failure(const std::filesystem::path& path, StatusCode code, const char* reason) {
  return {code, fmt::format("cannot write '{}': {}", path.string(), reason)};
}

/// As errno has it.
Status cannot_write(const std::filesystem::path& path) {
  const int error = errno;
  const bool of_device = error == ENOSPC || error == EDQUOT || error == EIO || error == EFBIG;
  return failure(path, of_device ? StatusCode::device_error : StatusCode::invalid_argument, std::strerror(error));
}

/// Whether a rename would replace something else than a regular file or a link to one.
bool is_other_than_file(int folder, const std::string& name) {
  struct stat status{};
  return ::fstatat(folder, name.c_str(), &status, 0) == 0 && !S_ISREG(status.st_mode);
}

}  // namespace

Result<AtomicFile> AtomicFile::create(const std::filesystem::path& path) {
  const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : ".";
  Descriptor folder(::open(parent.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_open()) return cannot_write(path);
  if (!path.has_filename() || is_other_than_file(folder.get(), path.filename().string())) {
    return failure(path, StatusCode::invalid_argument, "it is not a regular file");
  }
  AtomicFile file(path, std::move(folder));
  if (Status status = file.open_temporary(); !status.ok()) return status;
  return file;
}

Status AtomicFile::open_temporary() {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::uint64_t random = 0;
    if (::getrandom(&random, sizeof random, 0) != sizeof random) return cannot_write(path_);
    std::string name = fmt::format(".strobe-{:016x}.part", random);
    file_ =
        Descriptor(::openat(folder_.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (file_.is_open()) {
      temporary_ = std::move(name);
      return {};
    }
    if (errno != EEXIST) break;
  }
  return cannot_write(path_);
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlinkat(folder_.get(), temporary_.c_str(), 0);
}

Status AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return cannot_write(path_);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

Status AtomicFile::close() {
  if (file_.is_open() && file_.close() != 0) return cannot_write(path_);
  return {};
}

Status AtomicFile::commit() {
  if (Status status = close(); !status.ok()) return status;
  if (::renameat(folder_.get(), temporary_.c_str(), folder_.get(), path_.filename().c_str()) != 0) {
    return cannot_write(path_);
  }
  temporary_.clear();
  return {};
}

Status check_writable(const std::filesystem::path& path) { return AtomicFile::create(path).status(); }

Status write_file(const std::filesystem::path& path, std::initializer_list<std::span<const std::byte>> parts) {
  Result<AtomicFile> file = AtomicFile::create(path);
  if (!file.ok()) return file.status();
  for (const std::span<const std::byte> part : parts) {
    if (Status status = file->write(part); !status.ok()) return status;
  }
  return file->commit();
}

}  // namespace strobe::io
