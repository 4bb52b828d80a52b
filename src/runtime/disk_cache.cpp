// SPDX-License-Identifier: Apache-2.0
#include "runtime/disk_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "runtime/archive.h"

namespace strobe::runtime {
namespace {

namespace fs = std::filesystem;

constexpr off_t kLargestKernel = off_t{256}
                                 << 20;  // far above any cubin; a bound on what a wrong file can make us read
constexpr mode_t kOwnerOnly = S_IRWXU;
constexpr const char* kClaims = ".claims";
constexpr mode_t kOthers = S_IRWXG | S_IRWXO;

std::string file_name(const std::string& key) { return key + ".kernel"; }

bool read_all(int file, std::string& bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::read(file, bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<std::size_t>(got);
  }
  return true;
}

bool write_all(int file, const std::string& bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t put = ::write(file, bytes.data() + done, bytes.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    done += static_cast<std::size_t>(put);
  }
  return true;
}

/// The whole file, if it is a plain one that belongs to this user.
std::optional<std::string> read_own_file(int folder, const std::string& name) {
  // O_NONBLOCK: opening a pipe that someone left under this name must not wait for a writer.
  const FileDescriptor file(::openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat info{};
  if (!file.is_open() || ::fstat(file.get(), &info) != 0) return std::nullopt;
  if (!S_ISREG(info.st_mode) || info.st_uid != ::geteuid() || info.st_size > kLargestKernel) return std::nullopt;
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  if (!read_all(file.get(), bytes)) return std::nullopt;
  return bytes;
}

/// Different for every call of every process on this machine.
std::string temporary_name(const std::string& key) {
  static std::atomic<std::uint64_t> counter = 0;
  return fmt::format(".{}.{}.{}", key, ::getpid(), counter.fetch_add(1));
}

std::string home_folder() {
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') return home;
  const passwd* user = ::getpwuid(::geteuid());
  return user == nullptr ? "" : user->pw_dir;
}

}  // namespace

DiskCache DiskCache::open(const std::string& folder) {
  if (folder.empty()) return {};
  const auto failure = [&folder](std::string_view why) { return DiskCache(fmt::format("{}: {}", folder, why)); };
  std::error_code ignored;
  fs::create_directories(fs::path(folder).parent_path(), ignored);  // the open below tells whether it worked
  if (::mkdir(folder.c_str(), kOwnerOnly) != 0 && errno != EEXIST) return failure(std::strerror(errno));
  FileDescriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info{};
  if (!descriptor.is_open() || ::fstat(descriptor.get(), &info) != 0) return failure(std::strerror(errno));
  if (info.st_uid != ::geteuid()) return failure("it belongs to another user");
  if ((info.st_mode & kOthers) != 0) return failure("other users have access to it");
  return DiskCache(std::move(descriptor));
}

std::string DiskCache::default_folder() {
  if (const char* given = std::getenv("STROBE_CACHE_DIR"); given != nullptr && *given != '\0') {
    return fs::path(given) / "kernels";
  }
  // The XDG base directory specification: a relative path is to be ignored.
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg != nullptr && *xdg == '/') {
    return fs::path(xdg) / "strobe" / "kernels";
  }
  const fs::path home = home_folder();
  return home.empty() ? "" : home / ".cache" / "strobe" / "kernels";
}

std::optional<std::string> DiskCache::load(const std::string& key) const {
  if (!usable()) return std::nullopt;
  std::optional<std::string> bytes = read_own_file(folder_.get(), file_name(key));
  if (bytes.has_value() && !Archive::parse_untrusted(*bytes).ok()) {
    ::unlinkat(folder_.get(), file_name(key).c_str(), 0);
    return std::nullopt;
  }
  return bytes;
}

bool DiskCache::store(const std::string& key, const std::string& bytes) const {
  if (!usable()) return false;
  const std::string temporary = temporary_name(key);
  const FileDescriptor file(::openat(folder_.get(), temporary.c_str(),
                                     O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!file.is_open()) return false;
  // On the disk before it gets its name: after a power cut the name has either the whole content or is not there.
  const bool published = write_all(file.get(), bytes) && ::fsync(file.get()) == 0 &&
                         ::renameat(folder_.get(), temporary.c_str(), folder_.get(), file_name(key).c_str()) == 0;
  if (published) {
    ::fsync(folder_.get());
  } else {
    ::unlinkat(folder_.get(), temporary.c_str(), 0);
  }
  return published;
}

FileDescriptor DiskCache::claim(const std::string& key) const {
  constexpr auto kLongest = std::chrono::minutes(1);
  constexpr auto kInterval = std::chrono::milliseconds(20);
  if (!usable()) return {};
  FileDescriptor file(
      ::openat(folder_.get(), kClaims, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, S_IRUSR | S_IWUSR));
  // A byte of the file for each key: locks of an open file, which end with it, even where its process is killed.
  struct flock byte{};
  byte.l_type = F_WRLCK;
  byte.l_whence = SEEK_SET;
  byte.l_start = static_cast<off_t>(std::hash<std::string>()(key) >> 2U);
  byte.l_len = 1;
  const auto start = std::chrono::steady_clock::now();
  while (file.is_open() && ::fcntl(file.get(), F_OFD_SETLK, &byte) != 0) {
    if ((errno != EAGAIN && errno != EACCES) || std::chrono::steady_clock::now() - start > kLongest) break;
    std::this_thread::sleep_for(kInterval);
  }
  return file;
}

void DiskCache::keep_to_this_process() const {
  while (usable() && ::flock(folder_.get(), LOCK_EX) != 0 && errno == EINTR) continue;
}

}  // namespace strobe::runtime
