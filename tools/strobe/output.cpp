// SPDX-License-Identifier: Apache-2.0
#include "output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "io/printable.h"

namespace strobe::program {
namespace {

int first_error = 0;  // of standard output, as errno has it

void remember(bool written) {
  if (!written && first_error == 0) first_error = errno;
}

}  // namespace

void write_output(std::string_view text) {
  const std::string safe = io::printable_lines(text);
  remember(std::fwrite(safe.data(), 1, safe.size(), stdout) == safe.size());
}

void print_note(std::string_view message) {
  const std::string line = io::printable(message) + '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void print_error(std::string_view message) { print_note(fmt::format("strobe: {}", message)); }

Status finish_output() {
  remember(std::fflush(stdout) == 0);
  if (first_error == 0) return {};
  return {StatusCode::device_error, fmt::format("cannot write to standard output: {}", std::strerror(first_error))};
}

}  // namespace strobe::program
