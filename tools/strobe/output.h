// SPDX-License-Identifier: Apache-2.0
// The one way to standard output and standard error: what a terminal would obey is escaped, and text that cannot be
// written is not forgotten.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string_view>
#include <utility>

#include "strobe/status.h"

namespace strobe::program {

/// Begins a run of the program: what an earlier one in this process could not write is forgotten.
void start_output();

/// Writes to standard output, line ends as they are. A name from a file or an argument goes through io::printable()
/// first, so that it stays on its line.
void write_output(std::string_view text);

/// From here on standard output has what write_document() writes alone.
void leave_text_out();

/// Writes a document for programs to standard output, as it is.
void write_document(std::string_view text);

/// Columns of the terminal behind standard output, from 40 to 120; 80 where there is none.
std::size_t output_columns();

/// The same as write_output() for formatted text.
template <class... Arguments>
void print_text(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  write_output(fmt::format(format, std::forward<Arguments>(arguments)...));
}

/// Writes text in lines that fit output_columns(): see io::wrapped().
void print_wrapped(std::string_view text, std::size_t indent = std::string_view::npos);

/// One line on standard error, whatever the message holds.
void print_note(std::string_view message);

/// The same after "strobe: ".
void print_error(std::string_view message);

/// Brings everything to standard output. device_error, with the system's words, when some of it could not be written.
Status finish_output();

}  // namespace strobe::program
