// SPDX-License-Identifier: Apache-2.0
#include "io/memory.h"

#include <fstream>
#include <string>
#include <string_view>

namespace strobe::io {
namespace {

/// A field of one of the kernel's files of "name: value kB" lines; kB means KiB there.
std::int64_t field_bytes(const char* path, std::string_view field) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    std::int64_t kibibytes = 0;
    if (word == field && file >> kibibytes) return kibibytes * 1024;
  }
  return -1;
}

}  // namespace

std::int64_t resident_bytes() { return field_bytes("/proc/self/status", "VmRSS:"); }

std::int64_t peak_resident_bytes() { return field_bytes("/proc/self/status", "VmHWM:"); }

bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << '5' << std::flush;  // proc(5): resets the peak resident set size
  return file.good();
}

std::int64_t available_bytes() { return field_bytes("/proc/meminfo", "MemAvailable:"); }

}  // namespace strobe::io
