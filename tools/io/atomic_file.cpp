// SPDX-License-Identifier: Apache-2.0
#include "io/atomic_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

namespace strobe::io {
namespace {

Status cannot_write(const std::filesystem::path& path, const std::string& reason) {
  return {StatusCode::invalid_argument, fmt::format("cannot write '{}': {}", path.string(), reason)};
}

}  // namespace

Status write_file(const std::filesystem::path& path, std::initializer_list<std::span<const std::byte>> parts) {
  std::filesystem::path temporary = path;
  temporary += fmt::format(".{}.part", ::getpid());

  errno = 0;
  std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
  if (!stream) return cannot_write(path, std::strerror(errno));
  for (const std::span<const std::byte> part : parts) {
    stream.write(reinterpret_cast<const char*>(part.data()), static_cast<std::streamsize>(part.size()));
  }
  stream.close();
  std::error_code ignored;
  if (!stream) {
    const std::string reason = std::strerror(errno);
    std::filesystem::remove(temporary, ignored);
    return cannot_write(path, reason);
  }

  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) {
    std::filesystem::remove(temporary, ignored);
    return cannot_write(path, error.message());
  }
  return {};
}

}  // namespace strobe::io
