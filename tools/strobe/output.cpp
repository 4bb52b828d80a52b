// SPDX-License-Identifier: Apache-2.0
#include "output.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "io/printable.h"
#include "io/terminal.h"
#include "io/wrap.h"

namespace strobe::program {
namespace {

int first_error = 0;  // of standard output, as errno has it
bool text_is_left_out = false;

void remember(bool written) {
  if (!written && first_error == 0) first_error = errno;
}

void write(std::string_view text) { remember(std::fwrite(text.data(), 1, text.size(), stdout) == text.size()); }

}  // namespace

void start_output() {
  first_error = 0;
  text_is_left_out = false;
}

void write_output(std::string_view text) {
  if (!text_is_left_out) write(io::printable_lines(text));
}

void leave_text_out() { text_is_left_out = true; }

void write_document(std::string_view text) { write(text); }

std::size_t output_columns() {
  return static_cast<std::size_t>(std::clamp(io::terminal_columns(stdout, /*otherwise=*/80), 40, 120));
}

void print_wrapped(std::string_view text, std::size_t indent) {
  write_output(io::wrapped(text, output_columns(), indent));
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
