// SPDX-License-Identifier: Apache-2.0
#include "table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <sstream>

namespace strobe::program {
namespace {

constexpr std::size_t kGap = 2;  // between columns

std::vector<std::string> lines_of(const std::string& title) {
  std::vector<std::string> lines;
  std::istringstream stream(title);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

std::string Table::take_constant_keys() {
  std::vector<std::string> taken;
  for (std::size_t column = 0; column < keys_ && !rows_.empty();) {
    const std::string value = rows_.front()[column];
    if (std::ranges::any_of(rows_, [&](const auto& row) { return row[column] != value; })) {
      ++column;
      continue;
    }
    taken.push_back(fmt::format("{} {}", columns_[column].title, value));
    const auto place = static_cast<std::ptrdiff_t>(column);
    columns_.erase(columns_.begin() + place);
    for (auto& row : rows_) row.erase(row.begin() + place);
    --keys_;
  }
  return fmt::format("{}", fmt::join(taken, ", "));
}

std::vector<std::size_t> Table::widths() const {
  std::vector<std::size_t> widths;
  for (std::size_t column = 0; column < columns_.size(); ++column) {
    std::size_t width = 0;
    for (const std::string& line : lines_of(columns_[column].title)) width = std::max(width, line.size());
    for (const std::vector<std::string>& row : rows_) width = std::max(width, row[column].size());
    widths.push_back(width);
  }
  return widths;
}

std::string Table::block(const std::vector<std::size_t>& shown, const std::vector<std::size_t>& widths) const {
  std::string text;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (const std::size_t column : shown) {
      if (column != shown.front()) line.append(kGap, ' ');
      line += columns_[column].align == Align::left ? fmt::format("{:<{}}", cell_of(column), widths[column])
                                                    : fmt::format("{:>{}}", cell_of(column), widths[column]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  };
  std::size_t height = 0;
  for (const std::size_t column : shown) height = std::max(height, lines_of(columns_[column].title).size());
  for (std::size_t line = 0; line < height; ++line) {  // titles stand on the rule
    add_line([&](std::size_t column) {
      const std::vector<std::string> lines = lines_of(columns_[column].title);
      return line + lines.size() < height ? std::string() : lines[line + lines.size() - height];
    });
  }
  add_line([&](std::size_t column) { return std::string(widths[column], '-'); });
  for (const std::vector<std::string>& row : rows_) add_line([&](std::size_t column) { return row[column]; });
  return text;
}

std::string Table::text(std::size_t width) const {
  const std::vector<std::size_t> own = widths();
  std::vector<std::size_t> keys(keys_);
  std::iota(keys.begin(), keys.end(), std::size_t{0});
  const auto total = [&](const std::vector<std::size_t>& columns) {
    std::size_t sum = columns.empty() ? 0 : kGap * (columns.size() - 1);
    for (const std::size_t column : columns) sum += own[column];
    return sum;
  };
  std::vector<std::size_t> all(columns_.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  if (total(all) <= width) return block(all, own);
  std::string text;
  std::vector<std::size_t> shown = keys;
  for (std::size_t column = keys_; column < columns_.size(); ++column) {
    shown.push_back(column);
    const bool too_wide = total(shown) > width || columns_[column].begins_block;
    if (!too_wide || shown.size() == keys_ + 1) continue;
    shown.pop_back();
    text += block(shown, own) + '\n';
    shown = keys;
    shown.push_back(column);
  }
  return text + block(shown, own);
}

}  // namespace strobe::program
