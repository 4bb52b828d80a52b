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
#include <string>

#include "call/problem_text.h"
#include "expression/json.h"

namespace strobe::api {
namespace {

std::string line_of(const AttentionProblem& problem) {
  std::string line = call_text(problem);
  if (const ExpressionShape& shape = problem.expression; shape.given()) {
    const std::string texts = expression::json_of(*shape.formula, shape.gradients, shape.bias_fits, shape.slopes_fit);
    line.insert(line.size() - 1, fmt::format(", \"expression\": {}", texts));
  }
  return line + '\n';
}

/// One call at a time is written, and the same one once.
class Recorder {
 public:
  explicit Recorder(const char* path)
      : path_(path), file_(::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666)) {
    if (file_ < 0) complain();
  }

  void add(const AttentionProblem& problem) {
    const std::string line = line_of(problem);
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

void record(const AttentionProblem& problem) {
  if (Recorder* const wanted = recorder()) wanted->add(problem);
}

}  // namespace strobe::api
