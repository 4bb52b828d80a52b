// SPDX-License-Identifier: Apache-2.0
#include "runtime/tuned_table.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>

#include "runtime/archive.h"
#include "runtime/disk_cache.h"
#include "runtime/embedded.h"
#include "runtime/file_descriptor.h"
#include "runtime/sha256.h"

namespace strobe::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFormat = "strobe tuned choices 1";
constexpr std::string_view kLibrary = "library ";
constexpr std::string_view kDevice = "device ";
constexpr std::string_view kHash = "sha256 ";
constexpr std::string_view kSeparator = " | ";
constexpr off_t kLargestTable = off_t{16} << 20;

std::string hash_of(std::string_view text) { return to_hex(Sha256().update(text).finish()); }

/// Takes a line off the text; none where no line ends.
std::optional<std::string_view> take_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 1);
  return line;
}

/// Takes a line that begins with `name` off the text; what follows the name.
std::optional<std::string_view> take_line(std::string_view& text, std::string_view name) {
  const std::optional<std::string_view> line = take_line(text);
  if (!line.has_value() || !line->starts_with(name)) return std::nullopt;
  return line->substr(name.size());
}

std::string entry_line(std::string_view call, const TunedEntry& entry) {
  return fmt::format("{}{}{}{}{:.4f}\n", call, kSeparator, entry.choice, kSeparator, entry.gain);
}

/// Reads a line of an entry; whether it is one, behind those before.
bool add_entry(std::string_view line, TunedTable& table) {
  const std::size_t first = line.find(kSeparator);
  const std::size_t last = line.rfind(kSeparator);
  if (first == std::string_view::npos || first == last) return false;
  const std::string call(line.substr(0, first));
  const std::string_view number = line.substr(last + kSeparator.size());
  TunedEntry entry{.choice = std::string(line.substr(first + kSeparator.size(), last - first - kSeparator.size()))};
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), entry.gain);
  const bool is_gain = error == std::errc() && entry.gain > 0.0 && entry.gain < 1e6;
  if (!is_gain || entry_line(call, entry) != fmt::format("{}\n", line)) return false;
  if (!table.entries.empty() && table.entries.rbegin()->first >= call) return false;
  table.entries.emplace_hint(table.entries.end(), call, entry);
  return true;
}

/// The bytes of a plain file of moderate size, or why not.
std::optional<std::string> read_file(const std::string& path, std::string& reason) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info{};
  if (!file.is_open() || ::fstat(file.get(), &info) != 0) {
    reason = std::strerror(errno);
    return std::nullopt;
  }
  if (!S_ISREG(info.st_mode) || info.st_size > kLargestTable) {
    reason = "it is no table of tuned choices";
    return std::nullopt;
  }
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::read(file.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      reason = "it cannot be read";
      return std::nullopt;
    }
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

bool write_whole(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t put = ::write(file, text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(put));
  }
  return ::fsync(file) == 0;
}

/// A name for a file: letters and digits of the device's name, and '-' between them.
std::string file_name(const CudaDevice& device) {
  std::string name;
  for (const char c : tuned_device(device)) {
    const bool kept = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (kept) name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (!kept && !name.empty() && name.back() != '-') name += '-';
  }
  return name + ".txt";
}

TunedChoices choices_of(const CudaDevice& device) {
  const std::string path = tuned_path(device);
  if (path.empty()) return {.table = {}, .note = "none: there is no folder for them"};
  TunedRead read = read_tuned(path);
  const auto ignored = [&](std::string_view why) {
    return TunedChoices{.table = {}, .note = fmt::format("none: {}: {}", path, why)};
  };
  if (!read.reason.empty()) return ignored(read.reason);
  if (read.table.device != tuned_device(device)) return ignored(fmt::format("it is for {}", read.table.device));
  if (read.table.library != tuned_library()) return ignored("another version of the library measured it");
  std::string note = fmt::format("{} calls, from {}", read.table.entries.size(), path);
  return {.table = std::move(read.table), .note = std::move(note)};
}

}  // namespace

std::string tuned_device(const CudaDevice& device) {
  return fmt::format("{}, compute capability {}.{}, {} multiprocessors", device.name, device.compute_major,
                     device.compute_minor, device.multiprocessors);
}

std::string tuned_library() {
  const Result<Archive> sources = Archive::parse(embedded_sources());
  return fmt::format("{} {}", STROBE_LIBRARY_VERSION, sources.ok() ? to_hex(sources->digest()) : "without kernels");
}

std::string tuned_path(const CudaDevice& device) {
  if (const char* const given = std::getenv("STROBE_TUNED"); given != nullptr && *given != '\0') return given;
  const std::string kernels = DiskCache::default_folder();
  return kernels.empty() ? "" : fs::path(kernels).parent_path() / "tuned" / file_name(device);
}

std::string tuned_text(const TunedTable& table) {
  std::string text = fmt::format("{}\n{}{}\n{}{}\n", kFormat, kLibrary, table.library, kDevice, table.device);
  for (const auto& [call, entry] : table.entries) text += entry_line(call, entry);
  return text + fmt::format("{}{}\n", kHash, hash_of(text));
}

TunedRead parse_tuned(std::string_view text) {
  const auto damaged = [] { return TunedRead{.table = {}, .reason = "it is no table of tuned choices, or damaged"}; };
  const std::size_t hash = text.rfind(kHash);
  if (hash == std::string_view::npos ||
      text.substr(hash) != fmt::format("{}{}\n", kHash, hash_of(text.substr(0, hash)))) {
    return damaged();
  }
  std::string_view lines = text.substr(0, hash);
  const bool known = take_line(lines, kFormat) == "";
  const auto library = known ? take_line(lines, kLibrary) : std::nullopt;
  const auto device = library.has_value() ? take_line(lines, kDevice) : std::nullopt;
  if (!device.has_value()) return damaged();
  TunedRead read{.table = {.device = std::string(*device), .library = std::string(*library), .entries = {}},
                 .reason = ""};
  while (!lines.empty()) {
    const std::optional<std::string_view> line = take_line(lines);
    if (!line.has_value() || !add_entry(*line, read.table)) return damaged();
  }
  return read;
}

TunedRead read_tuned(const std::string& path) {
  std::string reason;
  const std::optional<std::string> bytes = read_file(path, reason);
  return bytes.has_value() ? parse_tuned(*bytes) : TunedRead{.table = {}, .reason = reason};
}

std::string write_tuned(const std::string& path, const TunedTable& table) {
  std::error_code ignored;
  if (const fs::path folder = fs::path(path).parent_path(); !folder.empty()) fs::create_directories(folder, ignored);
  std::string temporary = path + ".XXXXXX";
  const FileDescriptor file(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!file.is_open()) return std::strerror(errno);
  const bool written = write_whole(file.get(), tuned_text(table)) && ::fchmod(file.get(), 0644) == 0;
  if (written && ::rename(temporary.c_str(), path.c_str()) == 0) return {};
  const std::string reason = std::strerror(errno);
  ::unlink(temporary.c_str());
  return reason;
}

const TunedChoices& tuned_choices(const CudaDevice& device) {
  // Never destroyed: a plan that another static object makes may ask while the process ends.
  static auto& mutex = *new std::mutex;
  static auto& known = *new std::map<int, std::unique_ptr<const TunedChoices>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<const TunedChoices>& choices = known[device.index];
  if (choices == nullptr) choices = std::make_unique<const TunedChoices>(choices_of(device));
  return *choices;
}

}  // namespace strobe::runtime
