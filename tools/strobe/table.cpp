// SPDX-License-Identifier: Apache-2.0
#include "table.h"

#include <fmt/format.h>

#include <algorithm>

namespace strobe::program {

std::string Table::text() const {
  std::vector<std::size_t> widths;
  std::vector<std::string> titles;
  for (std::size_t column = 0; column < columns_.size(); ++column) {
    std::size_t width = columns_[column].title.size();
    for (const std::vector<std::string>& row : rows_) width = std::max(width, row[column].size());
    widths.push_back(width);
    titles.push_back(columns_[column].title);
  }

  std::string text;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t column = 0; column < cells.size(); ++column) {
      if (column > 0) line += "  ";
      line += columns_[column].align == Align::left ? fmt::format("{:<{}}", cells[column], widths[column])
                                                    : fmt::format("{:>{}}", cells[column], widths[column]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  };
  add_line(titles);
  std::vector<std::string> rule;
  for (const std::size_t width : widths) rule.emplace_back(width, '-');
  add_line(rule);
  for (const std::vector<std::string>& row : rows_) add_line(row);
  return text;
}

}  // namespace strobe::program
