// SPDX-License-Identifier: Apache-2.0
// Lines broken between words to fit a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace strobe::io {

/// `text` with every line of more than `columns` bytes broken at spaces; a longer word stays whole. What a broken line
/// goes on with is indented to `indent`, or to where the line's last column begins: after its first two or more spaces
/// in a row behind a word, otherwise below its first word.
std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent = std::string_view::npos);

}  // namespace strobe::io
