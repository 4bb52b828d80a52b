// SPDX-License-Identifier: Apache-2.0
#include "runtime/compile_progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>

namespace strobe::runtime {
namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";
constexpr int kUsualColumns = 80;

struct Compiling {
  std::mutex mutex;
  int count = 0;
};

Compiling& compiling() {
  static Compiling& state = *new Compiling;  // threads may compile while the process ends
  return state;
}

bool is_wanted() {
  const char* const value = std::getenv("STROBE_PROGRESS");
  return value != nullptr && std::string_view(value) == "1";
}

bool is_terminal() { return ::isatty(STDERR_FILENO) == 1; }

int terminal_columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsualColumns;
}

}  // namespace

std::string progress_line(int count, const std::string& name, int columns) {
  std::string line = count == 1 ? fmt::format("strobe: compiling {}", name)
                                : fmt::format("strobe: compiling {} kernels, the last {}", count, name);
  constexpr std::string_view kCut = "...";
  const auto longest = static_cast<std::size_t>(std::max(columns - 1, 0));
  if (line.size() <= longest) return line;
  return longest < kCut.size() ? "" : line.substr(0, longest - kCut.size()).append(kCut);
}

CompileProgress::CompileProgress(const std::string& name) : shown_(is_wanted()) {
  if (!shown_) return;
  if (!is_terminal()) {
    fmt::print(stderr, "strobe: compiling {}\n", name);
    return;
  }
  const std::lock_guard lock(compiling().mutex);
  fmt::print(stderr, "{}{}", kEraseLine, progress_line(++compiling().count, name, terminal_columns()));
  std::fflush(stderr);
}

CompileProgress::~CompileProgress() {
  if (!shown_ || !is_terminal()) return;
  const std::lock_guard lock(compiling().mutex);
  if (--compiling().count > 0) return;  // the line stays for the kernels that are still being compiled
  std::fwrite(kEraseLine.data(), 1, kEraseLine.size(), stderr);
  std::fflush(stderr);
}

}  // namespace strobe::runtime
