// SPDX-License-Identifier: Apache-2.0
#include "runtime/installed_packs.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "runtime/file_descriptor.h"

namespace strobe::runtime {
namespace {

namespace fs = std::filesystem;

/// The bytes of a file, never unmapped: kernels are read from them until the process ends. The Status says why not.
Result<std::string_view> mapped(const std::string& path) {
  const auto failure = [] { return Status(StatusCode::invalid_argument, std::strerror(errno)); };
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info{};
  if (!file.is_open() || ::fstat(file.get(), &info) != 0) return failure();
  if (!S_ISREG(info.st_mode)) return Status(StatusCode::invalid_argument, "it is no file");
  if (info.st_size == 0) return std::string_view();
  const auto size = static_cast<std::size_t>(info.st_size);
  void* const bytes = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (bytes == MAP_FAILED) return failure();
  return std::string_view(static_cast<const char*>(bytes), size);
}

InstalledPack open_pack(const std::string& path) {
  const Result<std::string_view> bytes = mapped(path);
  if (!bytes.ok()) return {.path = path, .pack = {}, .reason = bytes.status().message()};
  const Result<Archive> archive = Archive::parse(*bytes);
  if (!archive.ok()) return {.path = path, .pack = {}, .reason = archive.status().message()};
  KernelPack pack(*archive, KernelPack::Images::checked);
  if (pack.versions().empty()) return {.path = path, .pack = {}, .reason = "it does not say which NVRTC made it"};
  return {.path = path, .pack = std::move(pack), .reason = {}};
}

/// The folder that the library lies in, or the program that it is linked into.
fs::path own_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&packs_place), &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code ignored;
  return fs::absolute(info.dli_fname, ignored).parent_path();
}

}  // namespace

std::vector<InstalledPack> packs_in(const std::string& place) {
  std::error_code error;
  std::vector<InstalledPack> packs;
  if (place.empty()) return packs;
  if (!fs::is_directory(place, error)) {
    packs.push_back(open_pack(place));
    return packs;
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(place, error)) {
    if (entry.path().extension() == ".archive") packs.push_back(open_pack(entry.path()));
  }
  std::ranges::sort(packs, {}, &InstalledPack::path);
  return packs;
}

std::string packs_place() {
  if (const char* given = std::getenv("STROBE_KERNELS"); given != nullptr && *given != '\0') return given;
  const fs::path folder = own_folder();
  if (folder.empty()) return {};
  std::error_code ignored;
  for (const fs::path& place : {folder.parent_path() / "strobe_kernels", folder / "strobe_kernels"}) {
    if (fs::is_directory(place, ignored)) return place;
  }
  return {};
}

}  // namespace strobe::runtime
