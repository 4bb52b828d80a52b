// SPDX-License-Identifier: Apache-2.0
// The backwards of FlashAttention and FlashAttention-2 through a small fast memory: K and V outside in both, P
// recomputed tile by tile.
#include <cmath>

#include "io_blocks.h"

namespace strobe::bench {
namespace {

/// A block of queries as FlashAttention's backward takes it (algorithm 4): delta is computed at every visit, from O.
class QueriesWithOutput {
 public:
  static constexpr Residents kResidents{.outer_matrices = 4, .inner_matrices = 4, .inner_vectors = 3, .score_tiles = 2};

  QueriesWithOutput(FastMemory& fast, std::int64_t rows, std::int64_t d)
      : q(fast, rows, d),
        d_o(fast, rows, d),
        dq(fast, rows, d),
        lse(fast, rows, 1),
        delta(fast, rows, 1),
        o_(fast, rows, d),
        row_sum_(fast, rows, 1) {}

  void load(const SlowMemory& slow, Range rows) {
    q.load(slow.q, rows);
    o_.load(slow.o, rows);
    d_o.load(slow.d_o, rows);
    dq.load(slow.dq, rows);
    row_sum_.load(slow.row_sum, rows);
    lse.load(slow.row_max, rows);
    add_log(row_sum_, lse);
    delta.fill(rows.size(), 1, 0.0);
    add_row_products(d_o, o_, delta);
  }

  Tile q, d_o, dq, lse, delta;

 private:
  Tile o_, row_sum_;
};

/// The same in FlashAttention-2 (algorithm 2): LSE and delta, one number a row each, stand for O and the statistics.
class Queries {
 public:
  static constexpr Residents kResidents{.outer_matrices = 4, .inner_matrices = 3, .inner_vectors = 2, .score_tiles = 2};

  Queries(FastMemory& fast, std::int64_t rows, std::int64_t d)
      : q(fast, rows, d), d_o(fast, rows, d), dq(fast, rows, d), lse(fast, rows, 1), delta(fast, rows, 1) {}

  void load(const SlowMemory& slow, Range rows) {
    q.load(slow.q, rows);
    d_o.load(slow.d_o, rows);
    dq.load(slow.dq, rows);
    lse.load(slow.lse, rows);
    delta.load(slow.delta, rows);
  }

  Tile q, d_o, dq, lse, delta;
};

/// P = exp(S - LSE) in place of S, 0 where hidden.
void probabilities(const Tile& lse, Tile& scores) {
  if (!scores.computes()) return;
  for (std::int64_t i = 0; i < scores.rows(); ++i) {
    for (std::int64_t j = 0; j < scores.columns(); ++j) {
      const double score = scores.at(i, j);
      scores.at(i, j) = score == -INFINITY ? 0.0 : std::exp(score - lse.at(i, 0));
    }
  }
}

/// Keys outside, queries inside; dK and dV stay, dQ comes and goes.
template <class QueryBlock>
void walk(const IoProblem& problem, const BlockSizes& sizes, FastMemory& fast, SlowMemory& slow) {
  const std::int64_t d = problem.head_dim;
  const double scale = scale_of(problem);
  Tile k(fast, sizes.outer, d), v(fast, sizes.outer, d), dk(fast, sizes.outer, d), dv(fast, sizes.outer, d);
  QueryBlock block(fast, sizes.inner, d);
  Tile p(fast, sizes.inner, sizes.outer), ds(fast, sizes.inner, sizes.outer);
  for_blocks({0, problem.seqlen}, sizes.outer, [&](Range keys) {
    k.load(slow.k, keys);
    v.load(slow.v, keys);
    dk.fill(keys.size(), d, 0.0);
    dv.fill(keys.size(), d, 0.0);
    for_visible_blocks(problem, Side::keys, keys, sizes.inner, [&](Range queries) {
      block.load(slow, queries);
      multiply_transposed(scale, block.q, k, p);
      hide(problem.mask, {queries, keys}, p);
      probabilities(block.lse, p);
      add_transposed_product(1.0, p, block.d_o, dv);
      multiply_transposed(1.0, block.d_o, v, ds);
      softmax_gradient(p, block.delta, ds);
      add_product(scale, ds, k, block.dq);
      block.dq.store(slow.dq, queries);
      add_transposed_product(scale, ds, block.q, dk);
    });
    dk.store(slow.dk, keys);
    dv.store(slow.dv, keys);
  });
}

}  // namespace

Result<BlockSizes> flash_attention_backward(const IoProblem& problem, FastMemory& fast, SlowMemory& slow) {
  const Result<BlockSizes> sizes = block_sizes(problem, QueriesWithOutput::kResidents);
  if (!sizes.ok()) return sizes.status();
  initialize(fast, slow.dq, 0.0);
  walk<QueriesWithOutput>(problem, *sizes, fast, slow);
  return *sizes;
}

Result<BlockSizes> flash_attention_2_backward(const IoProblem& problem, FastMemory& fast, SlowMemory& slow) {
  const Result<BlockSizes> sizes = block_sizes(problem, Queries::kResidents);
  if (!sizes.ok()) return sizes.status();
  initialize(fast, slow.dq, 0.0);
  store_delta(fast, problem, slow);
  walk<Queries>(problem, *sizes, fast, slow);
  return *sizes;
}

}  // namespace strobe::bench
