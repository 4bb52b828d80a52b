// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include <array>
#include <csignal>
#include <cstdio>
#include <vector>

#include "tools/strobe/program.h"

namespace nb = nanobind;

namespace strobe::python {
namespace {

/// While it lives, a signal that Python handles or ignores does what it does to a program. Python makes SIGINT an
/// exception, which would wait for the end of the run, and ignores SIGPIPE and SIGXFSZ, so that a pipe that nobody
/// reads any more would be an error of the output.
class ProgramSignals {
 public:
  ProgramSignals() {
    for (Handler& handler : handlers_) {
      ::sigaction(handler.signal, nullptr, &handler.before);
      // Who starts a program in the background may have it ignore interrupts; Python leaves that as it is.
      if (handler.signal == SIGINT && handler.before.sa_handler == SIG_IGN) continue;
      struct sigaction usual{};
      usual.sa_handler = SIG_DFL;
      ::sigaction(handler.signal, &usual, nullptr);
    }
  }
  ~ProgramSignals() {
    for (const Handler& handler : handlers_) ::sigaction(handler.signal, &handler.before, nullptr);
  }
  ProgramSignals(const ProgramSignals&) = delete;
  ProgramSignals& operator=(const ProgramSignals&) = delete;

 private:
  struct Handler {
    int signal = 0;
    struct sigaction before{};
  };
  std::array<Handler, 3> handlers_{{{SIGINT}, {SIGPIPE}, {SIGXFSZ}}};
};

}  // namespace

int run_program(const nb::list& arguments, const std::string& python) {
  std::vector<std::string> words;
  for (const nb::handle argument : arguments) {
    const auto bytes = nb::cast<nb::bytes>(argument);
    words.emplace_back(bytes.c_str(), bytes.size());
  }
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);

  const nb::gil_scoped_release released;
  const ProgramSignals signals;
  return program::run_program(static_cast<int>(words.size()), pointers.data(), python);
}

}  // namespace strobe::python
