// SPDX-License-Identifier: Apache-2.0
// Two levels of memory in software: a slow one that holds matrices, and a fast one of M elements that holds tiles of
// them. Nothing is computed outside the fast memory, and every element that crosses between the two is counted.
#pragma once

#include <cstdint>
#include <vector>

namespace strobe::bench {

/// Rows or columns [begin, end).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
};

/// Elements that crossed between slow and fast memory.
struct Traffic {
  std::int64_t loads = 0;
  std::int64_t stores = 0;

  std::int64_t elements() const { return loads + stores; }
};

/// A row-major matrix in slow memory. One without values has its extents only: its tiles are moved and counted like any
/// other's, but nothing is copied and nothing computed, which is how sequences are counted whose S would not fit.
struct SlowMatrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<double> values;
};

/// Room for `capacity` elements.
class FastMemory {
 public:
  /// `computes`: tiles hold values, as the matrices do that they are loaded from.
  FastMemory(std::int64_t capacity, bool computes) : capacity_(capacity), computes_(computes) {}

  std::int64_t capacity() const { return capacity_; }
  bool computes() const { return computes_; }
  const Traffic& traffic() const { return traffic_; }

  /// The most elements that were held at once.
  std::int64_t peak() const { return peak_; }

 private:
  friend class Tile;

  std::int64_t capacity_;
  bool computes_;
  std::int64_t used_ = 0;
  std::int64_t peak_ = 0;
  Traffic traffic_;
};

/// A block of fast memory for as long as it lives. Throws std::length_error when the memory cannot hold it: a walk that
/// asks for more than there is has chosen its block sizes wrongly.
class Tile {
 public:
  Tile(FastMemory& memory, std::int64_t rows, std::int64_t columns);
  Tile(const Tile&) = delete;
  Tile& operator=(const Tile&) = delete;
  ~Tile();

  /// The rows and columns in use, which the last blocks of a matrix may not fill.
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  bool computes() const { return memory_.computes_; }

  double& at(std::int64_t row, std::int64_t column) { return values_[index(row, column)]; }
  double at(std::int64_t row, std::int64_t column) const { return values_[index(row, column)]; }

  /// Takes an extent and a value without any traffic: the start of what is computed here.
  void fill(std::int64_t rows, std::int64_t columns, double value);

  /// Copies between here and slow memory, counted. Whole rows where no columns are given.
  void load(const SlowMatrix& from, Range rows) { load(from, rows, {0, from.columns}); }
  void load(const SlowMatrix& from, Range rows, Range columns);
  void store(SlowMatrix& to, Range rows) const { store(to, rows, {0, to.columns}); }
  void store(SlowMatrix& to, Range rows, Range columns) const;

 private:
  std::size_t index(std::int64_t row, std::int64_t column) const {
    return static_cast<std::size_t>(row * columns_ + column);
  }
  void take_extent(std::int64_t rows, std::int64_t columns);

  FastMemory& memory_;
  std::int64_t room_;
  std::int64_t rows_ = 0;
  std::int64_t columns_ = 0;
  std::vector<double> values_;
};

/// out = scale a b^T, taking out's extent from a and b.
void multiply_transposed(double scale, const Tile& a, const Tile& b, Tile& out);

/// out += scale a b.
void add_product(double scale, const Tile& a, const Tile& b, Tile& out);

/// out += scale a^T b.
void add_transposed_product(double scale, const Tile& a, const Tile& b, Tile& out);

}  // namespace strobe::bench
