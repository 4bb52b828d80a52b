// SPDX-License-Identifier: Apache-2.0
#include "io_blocks.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

namespace strobe::bench {
namespace {

/// The largest block of whole mask blocks, or part of one that divides it, of at most `rows` rows: a block of rows that
/// straddled two mask blocks would load what only its other part sees.
std::int64_t align_to_mask(const BlockMask& mask, std::int64_t rows) {
  if (mask.block_size == 0) return rows;
  if (rows >= mask.block_size) return rows - rows % mask.block_size;
  while (mask.block_size % rows != 0) --rows;
  return rows;
}

}  // namespace

double BlockMask::density() const {
  const double count = std::accumulate(visible.begin(), visible.end(), 0.0);
  return count / static_cast<double>(visible.size());
}

Result<BlockSizes> block_sizes(const IoProblem& problem, const Residents& residents) {
  const std::int64_t d = problem.head_dim;
  const std::int64_t outer_row = residents.outer_matrices * d + residents.outer_vectors;
  const std::int64_t inner_row = residents.inner_matrices * d + residents.inner_vectors;
  const auto inner_for = [&](std::int64_t outer) {
    return (problem.fast_memory - outer * outer_row) / (inner_row + residents.score_tiles * outer);
  };
  std::int64_t outer = problem.fast_memory / (2 * residents.outer_matrices * d);
  outer = align_to_mask(problem.mask, std::clamp<std::int64_t>(outer, 1, problem.seqlen));
  if (inner_for(outer) < 1) outer = 1;
  std::int64_t inner = std::min({inner_for(outer), outer, d, problem.seqlen});
  if (problem.mask.block_size > 0) inner = std::min(inner, problem.mask.block_size);
  if (inner < 1) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("the fast memory has {} elements: with head_dim {} it must have at least {}",
                              problem.fast_memory, d, outer_row + inner_row + residents.score_tiles));
  }
  return BlockSizes{outer, inner};
}

void add_log(const Tile& row_sum, Tile& row_max) {
  if (!row_max.computes()) return;
  for (std::int64_t i = 0; i < row_max.rows(); ++i) row_max.at(i, 0) += std::log(row_sum.at(i, 0));
}

void hide(const BlockMask& mask, const Pair& pair, Tile& scores) {
  if (mask.block_size == 0 || !scores.computes()) return;
  for (std::int64_t i = 0; i < pair.queries.size(); ++i) {
    for (std::int64_t j = 0; j < pair.keys.size(); ++j) {
      if (!mask.sees((pair.queries.begin + i) / mask.block_size, (pair.keys.begin + j) / mask.block_size)) {
        scores.at(i, j) = -INFINITY;
      }
    }
  }
}

void add_row_products(const Tile& d_o, const Tile& o, Tile& delta) {
  if (!delta.computes()) return;
  for (std::int64_t i = 0; i < o.rows(); ++i) {
    for (std::int64_t c = 0; c < o.columns(); ++c) delta.at(i, 0) += d_o.at(i, c) * o.at(i, c);
  }
}

void softmax_gradient(const Tile& p, const Tile& delta, Tile& dp) {
  if (!dp.computes()) return;
  for (std::int64_t i = 0; i < p.rows(); ++i) {
    for (std::int64_t j = 0; j < p.columns(); ++j) dp.at(i, j) = p.at(i, j) * (dp.at(i, j) - delta.at(i, 0));
  }
}

void initialize(FastMemory& memory, SlowMatrix& matrix, double value) {
  const std::int64_t step = memory.capacity() / matrix.columns;
  Tile tile(memory, step, matrix.columns);
  for_blocks({0, matrix.rows}, step, [&](Range rows) {
    tile.fill(rows.size(), matrix.columns, value);
    tile.store(matrix, rows);
  });
}

void store_delta(FastMemory& memory, const IoProblem& problem, SlowMemory& slow) {
  const std::int64_t step = memory.capacity() / (2 * problem.head_dim + 1);
  Tile o(memory, step, problem.head_dim);
  Tile d_o(memory, step, problem.head_dim);
  Tile delta(memory, step, 1);
  for_blocks({0, problem.seqlen}, step, [&](Range rows) {
    o.load(slow.o, rows);
    d_o.load(slow.d_o, rows);
    delta.fill(rows.size(), 1, 0.0);
    add_row_products(d_o, o, delta);
    delta.store(slow.delta, rows);
  });
}

}  // namespace strobe::bench
