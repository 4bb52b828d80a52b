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

/// Runs `strobe arguments...` and waits for it. Standard output goes to `out`, where that is given, and is not
/// collected.
Outcome run_program(const std::vector<std::string>& arguments, const std::string& out = "");

/// The same, and sends it SIGINT, as Ctrl-C does, once `file` is there.
Outcome interrupt_program(const std::vector<std::string>& arguments, const std::string& file);

/// Expects exit code `code`, nothing on standard output, and one line "strobe: ..." with `words` in it on standard
/// error.
void expect_rejection(const Outcome& outcome, int code, const std::string& words);

}  // namespace strobe::test
