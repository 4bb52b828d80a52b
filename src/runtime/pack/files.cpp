// SPDX-License-Identifier: Apache-2.0
#include "runtime/pack/files.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>

namespace strobe::runtime {

Result<std::string> read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file) return Status(StatusCode::invalid_argument, fmt::format("{} cannot be read", path.string()));
  return bytes;
}

Status write_file(const std::filesystem::path& path, const std::string& bytes) {
  if (const Result<std::string> old = read_file(path); old.ok() && *old == bytes) return {};
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) return {StatusCode::invalid_argument, fmt::format("{} cannot be written", path.string())};
  return {};
}

}  // namespace strobe::runtime
