// SPDX-License-Identifier: Apache-2.0
#include "io/wrap.h"

#include <algorithm>

namespace strobe::io {
namespace {

constexpr std::size_t kNone = std::string_view::npos;

/// Where the text of the line's last column begins, but not in the right half.
std::size_t hanging_indent(std::string_view line, std::size_t columns) {
  const std::size_t first = std::min(line.find_first_not_of(' '), line.size());
  const std::size_t gap = line.find("  ", first);
  if (gap == kNone) return first;
  const std::size_t column = line.find_first_not_of(' ', gap);
  return column == kNone || column > columns / 2 ? first : column;
}

std::string wrapped_line(std::string_view line, std::size_t columns, std::size_t indent) {
  std::string result;
  std::size_t used = 0;  // columns that the indentation takes
  while (line.size() + used > columns) {
    const std::size_t room = columns > used ? columns - used : 1;
    const std::size_t words = std::min(line.find_first_not_of(' '), line.size());  // not before the first word
    const std::size_t behind = std::max(words, used == 0 ? std::min(indent, line.size()) : 0);
    std::size_t cut = line.rfind(' ', room);
    if (cut == kNone || cut <= behind) cut = line.find(' ', behind);
    if (cut == kNone) break;
    result += line.substr(0, std::min(line.find_last_not_of(' ', cut) + 1, cut));
    line.remove_prefix(std::min(line.find_first_not_of(' ', cut), line.size()));
    result += '\n' + std::string(line.empty() ? 0 : indent, ' ');
    used = indent;
  }
  return result + std::string(line);
}

}  // namespace

std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent) {
  std::string result;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    const std::size_t hanging = indent == kNone ? hanging_indent(line, columns) : indent;
    result += line.size() > columns ? wrapped_line(line, columns, hanging) : std::string(line);
    if (end == kNone) break;
    result += '\n';
    text.remove_prefix(end + 1);
  }
  return result;
}

}  // namespace strobe::io
