// SPDX-License-Identifier: Apache-2.0
// Plain text tables: columns as wide as their widest cell.
#pragma once

#include <string>
#include <vector>

namespace strobe::program {

class Table {
 public:
  enum class Align { left, right };
  struct Column {
    std::string title;
    Align align = Align::right;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// One cell for each column.
  void add_row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  /// Title line, a rule and the rows, two spaces between columns.
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace strobe::program
