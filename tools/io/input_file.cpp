// SPDX-License-Identifier: Apache-2.0
#include "io/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

namespace strobe::io {
namespace {

Status failure_of(const std::filesystem::path& path, const std::string& reason) {
  return {StatusCode::invalid_argument, fmt::format("'{}' {}", path.string(), reason)};
}

Status cannot_read(const std::filesystem::path& path) {
  return failure_of(path, fmt::format("cannot be read: {}", std::strerror(errno)));
}

}  // namespace

Result<InputFile> InputFile::open(const std::filesystem::path& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe without a writer blocks open()
  struct stat status{};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0) return cannot_read(path);
  if (!S_ISREG(status.st_mode)) return failure_of(path, "cannot be read: it is not a regular file");
  return InputFile(path, std::move(file), static_cast<std::uint64_t>(status.st_size), /*pipe=*/false);
}

Result<InputFile> InputFile::open_in_order(const std::filesystem::path& path) {
  const bool standard_input = path == "-";
  struct stat status{};
  // Looked at before it is opened: opening a device may wait, or do something.
  if ((standard_input ? ::fstat(STDIN_FILENO, &status) : ::stat(path.c_str(), &status)) != 0) return cannot_read(path);
  if (S_ISREG(status.st_mode) && !standard_input) return open(path);
  if (!S_ISREG(status.st_mode) && !S_ISFIFO(status.st_mode) && !S_ISSOCK(status.st_mode)) {
    return failure_of(path, "cannot be read: it is not a file or a pipe");
  }
  Descriptor file(standard_input ? ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)
                                 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return cannot_read(path);
  return InputFile(path, std::move(file), std::numeric_limits<std::uint64_t>::max(), /*pipe=*/true);
}

ssize_t InputFile::read_some(std::uint64_t offset, std::span<std::byte> to) const {
  for (;;) {
    const ssize_t bytes = pipe_ ? ::read(file_.get(), to.data(), to.size())
                                : ::pread(file_.get(), to.data(), to.size(), static_cast<off_t>(offset));
    if (bytes >= 0 || errno != EINTR) return bytes;
  }
}

Status InputFile::read(std::uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t bytes = read_some(offset, to);
    if (bytes < 0) return cannot_read(path_);
    if (bytes == 0 && pipe_) return failure(fmt::format("ends at byte {}", offset));
    if (bytes == 0) return failure(fmt::format("ends at byte {}: it was cut short while it was read", offset));
    offset += static_cast<std::uint64_t>(bytes);
    to = to.subspan(static_cast<std::size_t>(bytes));
  }
  return {};
}

bool InputFile::ends_at(std::uint64_t offset) const {
  std::byte next{};
  return read_some(offset, {&next, 1}) == 0;
}

Status InputFile::failure(const std::string& reason) const { return failure_of(path_, reason); }

}  // namespace strobe::io
