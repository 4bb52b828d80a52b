// SPDX-License-Identifier: Apache-2.0
#include "api/record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <type_traits>

#include "call/problem_fields.h"

namespace strobe::api {
namespace {

template <class Struct>
std::string json_of(const Struct& value);

template <class Value>
std::string json_value(const Value& value) {
  if constexpr (std::is_same_v<Value, bool> || std::is_integral_v<Value> || std::is_floating_point_v<Value>) {
    return fmt::format("{}", value);
  } else if constexpr (std::is_enum_v<Value>) {
    return fmt::format("\"{}\"", names_of(value)[static_cast<std::size_t>(value)]);
  } else {
    return json_of(value);
  }
}

template <class Struct>
std::string json_of(const Struct& value) {
  const Struct standard;
  std::string fields;
  std::apply(
      [&](const auto&... all) {
        const auto add = [&](const auto& field) {
          const auto& mine = value.*(field.member);
          if constexpr (!std::is_same_v<std::remove_cvref_t<decltype(mine)>, Device>) {
            if (mine == standard.*(field.member)) return;
            fields += fmt::format("{}\"{}\": {}", fields.empty() ? "" : ", ", field.name, json_value(mine));
          }
        };
        (add(all), ...);
      },
      fields_of(value));
  return fmt::format("{{{}}}", fields);
}

/// One call at a time is written, and the same one once.
class Recorder {
 public:
  explicit Recorder(const char* path)
      : path_(path), file_(::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666)) {
    if (file_ < 0) complain();
  }

  void add(const AttentionProblem& problem) {
    std::string line = recorded_text(problem) + '\n';
    const std::lock_guard lock(mutex_);
    if (file_ < 0 || lines_.size() == kMostLines || !lines_.insert(line).second) return;
    // One write: lines of processes that share the file stay whole.
    if (::write(file_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
      complain();
      file_ = -1;
    }
  }

 private:
  static constexpr std::size_t kMostLines = 100'000;  // of a process whose shapes never repeat

  void complain() const {
    fmt::print(stderr, "strobe: calls are not recorded: STROBE_RECORD is {}: {}\n", path_, std::strerror(errno));
  }

  std::string path_;
  int file_;
  std::mutex mutex_;
  std::set<std::string> lines_;
};

/// Null where no calls are to be recorded. Never destroyed: other static objects may make calls while the process ends.
Recorder* recorder() {
  static Recorder* const wanted = [] {
    const char* const path = std::getenv("STROBE_RECORD");
    return path != nullptr && *path != '\0' ? new Recorder(path) : nullptr;
  }();
  return wanted;
}

}  // namespace

std::string recorded_text(const AttentionProblem& problem) { return json_of(problem); }

void record(const AttentionProblem& problem) {
  if (Recorder* const wanted = recorder()) wanted->add(problem);
}

}  // namespace strobe::api
