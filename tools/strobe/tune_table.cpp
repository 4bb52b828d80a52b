// SPDX-License-Identifier: Apache-2.0
#include "tune_table.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "io/atomic_file.h"

namespace strobe::program {
namespace {

Status kept(const std::string& path, const std::string& why) {
  return {StatusCode::invalid_argument,
          fmt::format("'{}' is not written over: {}; remove it or name another --output", path, why)};
}

}  // namespace

Result<runtime::TunedTable> table_before(const std::string& path) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (Status status = io::check_writable(path); !status.ok()) return status;
  if (!std::filesystem::exists(path, error) || std::filesystem::is_empty(path, error)) return runtime::TunedTable();
  runtime::TunedRead before = runtime::read_tuned(path);
  if (!before.reason.empty()) return kept(path, before.reason);
  return std::move(before.table);
}

Result<TableToWrite> table_to_write(const std::string& path, const runtime::TunedTable& before,
                                    const std::string& device, const std::string& library) {
  TableToWrite written{.table = {.device = device, .library = library, .entries = {}}, .note = {}};
  if (before.entries.empty()) return written;
  if (before.device != device) return kept(path, "it is for " + before.device);
  if (before.library == library) {
    written.table.entries = before.entries;
  } else {
    written.note = fmt::format("another version of the library measured the {} calls in {}: they are not kept\n",
                               before.entries.size(), path);
  }
  return written;
}

}  // namespace strobe::program
