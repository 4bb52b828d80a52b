// SPDX-License-Identifier: Apache-2.0
#include "process_tree.h"

#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>

namespace strobe::test {
namespace {

namespace fs = std::filesystem;

std::string content_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// The numbers that name folders in `folder`: processes in /proc, threads in /proc/PID/task.
std::vector<pid_t> numbers_in(const fs::path& folder) {
  std::vector<pid_t> numbers;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    pid_t number = 0;
    const auto [rest, failure] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (failure == std::errc() && rest == name.data() + name.size()) numbers.push_back(number);
  }
  return numbers;
}

fs::path folder_of(pid_t process) { return fs::path("/proc") / std::to_string(process); }

/// The fields of /proc/PID/stat after the name in brackets, which may hold anything: state, parent, ...
std::string fields_after_name(const fs::path& folder) {
  const std::string stat = content_of(folder / "stat");
  const std::size_t end = stat.rfind(") ");
  return end == std::string::npos ? "" : stat.substr(end + 2);
}

/// Nothing for a process that has ended.
std::optional<pid_t> parent_of(pid_t process) {
  const std::string fields = fields_after_name(folder_of(process));
  pid_t parent = 0;
  if (fields.size() < 3 || fields[0] == 'Z') return std::nullopt;
  const auto [rest, error] = std::from_chars(fields.data() + 2, fields.data() + fields.size(), parent);
  return error == std::errc() ? std::optional(parent) : std::nullopt;
}

}  // namespace

std::vector<pid_t> descendants() {
  std::multimap<pid_t, pid_t> children;
  for (const pid_t process : numbers_in("/proc")) {
    if (const std::optional<pid_t> parent = parent_of(process)) children.emplace(*parent, process);
  }
  std::vector<pid_t> found{::getpid()};
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto [begin, end] = children.equal_range(found[i]);
    for (auto child = begin; child != end; ++child) found.push_back(child->second);
  }
  found.erase(found.begin());
  return found;
}

std::vector<pid_t> stop_descendants() {
  std::vector<pid_t> stopped;
  for (std::size_t before = 1; before != stopped.size();) {
    before = stopped.size();
    stopped = descendants();
    for (const pid_t process : stopped) ::kill(process, SIGSTOP);
    if (stopped.empty()) break;
  }
  std::reverse(stopped.begin(), stopped.end());
  return stopped;
}

bool has_ended(pid_t process) { return !parent_of(process); }

void describe_process(pid_t process) {
  const fs::path folder = folder_of(process);
  std::string command = content_of(folder / "cmdline");
  std::replace(command.begin(), command.end(), '\0', ' ');
  std::fprintf(stderr, "process %d: %s\n", static_cast<int>(process), command.c_str());
  for (const pid_t thread : numbers_in(folder / "task")) {
    const std::string name = content_of(folder / "task" / std::to_string(thread) / "comm");  // ends with a newline
    std::fprintf(stderr, "  thread %d: %s", static_cast<int>(thread), name.c_str());
  }
}

}  // namespace strobe::test
