// SPDX-License-Identifier: Apache-2.0
// Runs the strobe program and collects what it said.
#pragma once

#include <string>
#include <vector>

namespace strobe::test {

struct Outcome {
  int exit_code = -1;  // -1: it did not exit by itself
  std::string out;
  std::string err;
};

/// A command's arguments.
using Words = std::vector<std::string>;

/// `all`, then `more`.
inline Words operator+(Words all, const Words& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

inline bool contains(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

/// Runs `strobe arguments...` and waits for it. Standard output goes to `out`, where that is given, and is not
/// collected.
Outcome run_program(const Words& arguments, const std::string& out = "");

/// The same, and sends it SIGINT, as Ctrl-C does, once `file` is there.
Outcome interrupt_program(const Words& arguments, const std::string& file);

/// Expects exit code `code`, nothing on standard output, and one line "strobe: ..." with `words` in it on standard
/// error.
void expect_rejection(const Outcome& outcome, int code, const std::string& words);

}  // namespace strobe::test
