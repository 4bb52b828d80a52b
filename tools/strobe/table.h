// SPDX-License-Identifier: Apache-2.0
// Plain text tables: columns as wide as their widest cell.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace strobe::program {

class Table {
 public:
  enum class Align { left, right };
  struct Column {
    std::string title;  // of one line or more
    Align align = Align::right;
    bool begins_block = false;  // where the table is cut, if it is too wide
  };

  /// The first `keys` columns say what a row is about: they stand in every block.
  explicit Table(std::vector<Column> columns, std::size_t keys = 0) : columns_(std::move(columns)), keys_(keys) {}

  /// One cell for each column.
  void add_row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  bool empty() const { return rows_.empty(); }

  /// Takes out the keys that are the same in every row: "dtype float32, head_dim 128"; "" where none is.
  std::string take_constant_keys();

  /// Title lines, a rule and the rows, two spaces between columns. What is wider than `width` is cut into blocks of
  /// columns, one below the other.
  std::string text(std::size_t width) const;

 private:
  std::vector<std::size_t> widths() const;
  std::string block(const std::vector<std::size_t>& shown, const std::vector<std::size_t>& widths) const;

  std::vector<Column> columns_;
  std::size_t keys_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace strobe::program
