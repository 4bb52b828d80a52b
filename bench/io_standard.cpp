// SPDX-License-Identifier: Apache-2.0
// Standard attention through a small fast memory: three matrix operations forward, six backward, each between slow
// memory and slow memory.
#include <algorithm>
#include <cmath>

#include "io_blocks.h"

namespace strobe::bench {
namespace {

/// out = scale x y^T, every tile of it stored: S from Q and K, dP from dO and V.
void store_scores(FastMemory& fast, const BlockSizes& sizes, double scale, const SlowMatrix& x, const SlowMatrix& y,
                  SlowMatrix& out) {
  Tile outer(fast, sizes.outer, x.columns);
  Tile inner(fast, sizes.inner, y.columns);
  Tile scores(fast, sizes.outer, sizes.inner);
  for_blocks({0, x.rows}, sizes.outer, [&](Range rows) {
    outer.load(x, rows);
    for_blocks({0, y.rows}, sizes.inner, [&](Range columns) {
      inner.load(y, columns);
      multiply_transposed(scale, outer, inner, scores);
      scores.store(out, rows, columns);
    });
  });
}

/// out = scale scores y: O from P and V, dQ from dS and K.
void store_product(FastMemory& fast, const BlockSizes& sizes, double scale, const SlowMatrix& scores,
                   const SlowMatrix& y, SlowMatrix& out) {
  Tile sum(fast, sizes.outer, out.columns);
  Tile inner(fast, sizes.inner, y.columns);
  Tile tile(fast, sizes.outer, sizes.inner);
  for_blocks({0, out.rows}, sizes.outer, [&](Range rows) {
    sum.fill(rows.size(), out.columns, 0.0);
    for_blocks({0, y.rows}, sizes.inner, [&](Range columns) {
      inner.load(y, columns);
      tile.load(scores, rows, columns);
      add_product(scale, tile, inner, sum);
    });
    sum.store(out, rows);
  });
}

/// out = scale scores^T y: dV from P and dO, dK from dS and Q.
void store_transposed_product(FastMemory& fast, const BlockSizes& sizes, double scale, const SlowMatrix& scores,
                              const SlowMatrix& y, SlowMatrix& out) {
  Tile sum(fast, sizes.outer, out.columns);
  Tile inner(fast, sizes.inner, y.columns);
  Tile tile(fast, sizes.inner, sizes.outer);
  for_blocks({0, out.rows}, sizes.outer, [&](Range columns) {
    sum.fill(columns.size(), out.columns, 0.0);
    for_blocks({0, y.rows}, sizes.inner, [&](Range rows) {
      inner.load(y, rows);
      tile.load(scores, rows, columns);
      add_transposed_product(scale, tile, inner, sum);
    });
    sum.store(out, columns);
  });
}

/// The maximum and the sum of exponentials of each row of what has been seen so far.
class RowStatistics {
 public:
  RowStatistics(FastMemory& fast, std::int64_t rows) : row_max_(fast, rows, 1), row_sum_(fast, rows, 1) {}

  void start(std::int64_t rows) {
    row_max_.fill(rows, 1, -INFINITY);
    row_sum_.fill(rows, 1, 0.0);
  }

  void add(const Tile& scores) {
    if (!scores.computes()) return;
    for (std::int64_t i = 0; i < scores.rows(); ++i) {
      for (std::int64_t j = 0; j < scores.columns(); ++j) {
        const double row_max = std::max(row_max_.at(i, 0), scores.at(i, j));
        row_sum_.at(i, 0) =
            row_sum_.at(i, 0) * std::exp(row_max_.at(i, 0) - row_max) + std::exp(scores.at(i, j) - row_max);
        row_max_.at(i, 0) = row_max;
      }
    }
  }

  /// Probabilities in place of scores.
  void normalize(Tile& scores) const {
    if (!scores.computes()) return;
    for (std::int64_t i = 0; i < scores.rows(); ++i) {
      for (std::int64_t j = 0; j < scores.columns(); ++j) {
        scores.at(i, j) = std::exp(scores.at(i, j) - row_max_.at(i, 0)) / row_sum_.at(i, 0);
      }
    }
  }

 private:
  Tile row_max_, row_sum_;
};

/// P = softmax(S). Rows that fit into the fast memory are read once; longer ones a second time, after their sum.
void store_softmax(FastMemory& fast, SlowMemory& slow) {
  const std::int64_t length = slow.s.columns;
  const std::int64_t rows_at_once = std::max<std::int64_t>(fast.capacity() / (length + 2), 1);
  const std::int64_t columns_at_once = std::min(length, fast.capacity() - 2);
  Tile scores(fast, rows_at_once, columns_at_once);
  RowStatistics statistics(fast, rows_at_once);
  for_blocks({0, slow.s.rows}, rows_at_once, [&](Range rows) {
    statistics.start(rows.size());
    for_blocks({0, length}, columns_at_once, [&](Range columns) {
      scores.load(slow.s, rows, columns);
      statistics.add(scores);
    });
    for_blocks({0, length}, columns_at_once, [&](Range columns) {
      if (columns.size() < length) scores.load(slow.s, rows, columns);
      statistics.normalize(scores);
      scores.store(slow.p, rows, columns);
    });
  });
}

/// dS = P (dP - delta).
void store_softmax_gradient(FastMemory& fast, SlowMemory& slow) {
  const std::int64_t length = slow.p.columns;
  const std::int64_t rows_at_once = std::max<std::int64_t>(fast.capacity() / (2 * length + 1), 1);
  const std::int64_t columns_at_once = std::min(length, (fast.capacity() - 1) / 2);
  Tile p(fast, rows_at_once, columns_at_once);
  Tile dp(fast, rows_at_once, columns_at_once);
  Tile delta(fast, rows_at_once, 1);
  for_blocks({0, slow.p.rows}, rows_at_once, [&](Range rows) {
    delta.load(slow.delta, rows);
    for_blocks({0, length}, columns_at_once, [&](Range columns) {
      p.load(slow.p, rows, columns);
      dp.load(slow.dp, rows, columns);
      softmax_gradient(p, delta, dp);
      dp.store(slow.ds, rows, columns);
    });
  });
}

}  // namespace

Result<BlockSizes> standard_forward(const IoProblem& problem, FastMemory& fast, SlowMemory& slow) {
  const Result<BlockSizes> sizes = block_sizes(problem, {});
  if (!sizes.ok()) return sizes.status();
  store_scores(fast, *sizes, scale_of(problem), slow.q, slow.k, slow.s);
  store_softmax(fast, slow);
  store_product(fast, *sizes, 1.0, slow.p, slow.v, slow.o);
  return *sizes;
}

Result<BlockSizes> standard_backward(const IoProblem& problem, FastMemory& fast, SlowMemory& slow) {
  const Result<BlockSizes> sizes = block_sizes(problem, {});
  if (!sizes.ok()) return sizes.status();
  const double scale = scale_of(problem);
  store_transposed_product(fast, *sizes, 1.0, slow.p, slow.d_o, slow.dv);
  store_scores(fast, *sizes, 1.0, slow.d_o, slow.v, slow.dp);
  store_delta(fast, problem, slow);  // algorithm 3 sums rows of P dP, which long rows would have to be read twice for
  store_softmax_gradient(fast, slow);
  store_product(fast, *sizes, scale, slow.ds, slow.k, slow.dq);
  store_transposed_product(fast, *sizes, scale, slow.ds, slow.q, slow.dk);
  return *sizes;
}

}  // namespace strobe::bench
