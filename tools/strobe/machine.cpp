// SPDX-License-Identifier: Apache-2.0
#include "machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hwy/targets.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string_view>

namespace strobe::program {
namespace {

/// The value of the first line "key : value" in /proc/cpuinfo that starts with `key`.
std::string cpuinfo(std::string_view key) {
  std::ifstream stream("/proc/cpuinfo");
  for (std::string line; std::getline(stream, line);) {
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos && line.starts_with(key)) return line.substr(colon + 2);
  }
  return {};
}

/// The first line of a file, "" when it cannot be read.
std::string first_line(const std::filesystem::path& path) {
  std::string line;
  std::ifstream stream(path);
  std::getline(stream, line);
  return line;
}

/// "32768K" -> "32 MiB".
std::string size_text(const std::string& kernel_text) {
  const long kib = std::strtol(kernel_text.c_str(), nullptr, 10);
  return kib >= 1024 ? fmt::format("{} MiB", kib / 1024) : fmt::format("{} KiB", kib);
}

}  // namespace

std::string processor_name() {
  if (std::string name = cpuinfo("model name"); !name.empty()) return name;
  // Arm's processors have numbers.
  const std::string part = cpuinfo("CPU part");
  return part.empty() ? "unknown" : fmt::format("implementer {}, part {}", cpuinfo("CPU implementer"), part);
}

std::vector<std::string> processor_features() {
  constexpr std::array kRelevant{"sse4_1",   "avx",      "avx2",        "fma",         "f16c",     "avx512f",
                                 "avx512bw", "avx512vl", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16",
                                 "asimd",    "sve",      "sve2",        "bf16"};
  std::string flags = cpuinfo("flags");
  if (flags.empty()) flags = cpuinfo("Features");  // the line's name on Arm
  std::istringstream words(flags);
  const std::set<std::string> present{std::istream_iterator<std::string>(words), {}};
  std::vector<std::string> features;
  for (const char* const feature : kRelevant) {
    if (present.contains(feature)) features.emplace_back(feature);
  }
  return features;
}

std::string cache_sizes() {
  std::vector<std::string> sizes;
  for (int index = 0;; ++index) {  // sysconf() knows the sizes too, but reports a wrong L3 on some processors
    const std::filesystem::path cache = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}", index);
    const std::string level = first_line(cache / "level");
    if (level.empty()) break;
    const std::string type = first_line(cache / "type");
    if (type == "Instruction") continue;
    sizes.push_back(fmt::format("L{}{} {}", level, type == "Data" ? "d" : "", size_text(first_line(cache / "size"))));
  }
  return sizes.empty() ? "unknown" : fmt::format("{}", fmt::join(sizes, ", "));
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  const auto usable = hwy::SupportedTargets() & HWY_TARGETS;
  for (auto rest = usable; rest != 0; rest &= rest - 1)
    names.emplace_back(hwy::TargetName(rest & -rest));  // best first
  return names;
}

}  // namespace strobe::program
