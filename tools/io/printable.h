// SPDX-License-Identifier: Apache-2.0
// Text from files and arguments, made safe to show: a terminal obeys what it is sent.
#pragma once

#include <string>
#include <string_view>

namespace strobe::io {

/// `text` on one line: control characters, line ends among them, characters that reorder text and bytes that are not
/// UTF-8 become \n, \t, \x1b or \u202e. Everything else stays as it is.
std::string printable(std::string_view text);

/// The same for text of several lines: line ends stay.
std::string printable_lines(std::string_view text);

}  // namespace strobe::io
