// SPDX-License-Identifier: Apache-2.0
#include "io_memory.h"

#include <algorithm>
#include <stdexcept>

namespace strobe::bench {

Tile::Tile(FastMemory& memory, std::int64_t rows, std::int64_t columns) : memory_(memory), room_(rows * columns) {
  if (memory_.used_ + room_ > memory_.capacity_) throw std::length_error("the fast memory is full");
  memory_.used_ += room_;
  memory_.peak_ = std::max(memory_.peak_, memory_.used_);
  if (memory_.computes_) values_.resize(static_cast<std::size_t>(room_));
}

Tile::~Tile() { memory_.used_ -= room_; }

void Tile::take_extent(std::int64_t rows, std::int64_t columns) {
  if (rows * columns > room_) throw std::length_error("the tile is too small for its block");
  rows_ = rows;
  columns_ = columns;
}

void Tile::fill(std::int64_t rows, std::int64_t columns, double value) {
  take_extent(rows, columns);
  std::fill(values_.begin(), values_.end(), value);
}

void Tile::load(const SlowMatrix& from, Range rows, Range columns) {
  take_extent(rows.size(), columns.size());
  memory_.traffic_.loads += rows_ * columns_;
  if (!memory_.computes_) return;
  for (std::int64_t row = 0; row < rows_; ++row) {
    const auto source = from.values.begin() + (rows.begin + row) * from.columns + columns.begin;
    std::copy(source, source + columns_, values_.begin() + row * columns_);
  }
}

void Tile::store(SlowMatrix& to, Range rows, Range columns) const {
  memory_.traffic_.stores += rows.size() * columns.size();
  if (!memory_.computes_) return;
  for (std::int64_t row = 0; row < rows_; ++row) {
    const auto source = values_.begin() + row * columns_;
    std::copy(source, source + columns_, to.values.begin() + (rows.begin + row) * to.columns + columns.begin);
  }
}

void multiply_transposed(double scale, const Tile& a, const Tile& b, Tile& out) {
  out.fill(a.rows(), b.rows(), 0.0);
  if (!out.computes()) return;
  for (std::int64_t i = 0; i < a.rows(); ++i) {
    for (std::int64_t j = 0; j < b.rows(); ++j) {
      for (std::int64_t c = 0; c < a.columns(); ++c) out.at(i, j) += a.at(i, c) * b.at(j, c);
      out.at(i, j) *= scale;
    }
  }
}

void add_product(double scale, const Tile& a, const Tile& b, Tile& out) {
  if (!out.computes()) return;
  for (std::int64_t i = 0; i < a.rows(); ++i) {
    for (std::int64_t j = 0; j < b.rows(); ++j) {
      for (std::int64_t c = 0; c < b.columns(); ++c) out.at(i, c) += scale * a.at(i, j) * b.at(j, c);
    }
  }
}

void add_transposed_product(double scale, const Tile& a, const Tile& b, Tile& out) {
  if (!out.computes()) return;
  for (std::int64_t i = 0; i < a.rows(); ++i) {
    for (std::int64_t j = 0; j < a.columns(); ++j) {
      for (std::int64_t c = 0; c < b.columns(); ++c) out.at(j, c) += scale * a.at(i, j) * b.at(i, c);
    }
  }
}

}  // namespace strobe::bench
