// SPDX-License-Identifier: Apache-2.0
// The forwards of FlashAttention and FlashAttention-2 through a small fast memory.
#include <algorithm>
#include <cmath>

#include "io_blocks.h"

namespace strobe::bench {
namespace {

/// P relative to the new maximum in place of S; the sum and the unscaled output follow the maximum.
void online_softmax(Tile& scores, Tile& row_max, Tile& row_sum, Tile& o) {
  for (std::int64_t i = 0; i < scores.rows(); ++i) {
    double maximum = row_max.at(i, 0);
    for (std::int64_t j = 0; j < scores.columns(); ++j) maximum = std::max(maximum, scores.at(i, j));
    if (maximum == -INFINITY) maximum = 0.0;  // no key seen yet: exp(-inf - 0) is 0, exp(-inf + inf) is not
    const double rescale = std::exp(row_max.at(i, 0) - maximum);
    double sum = rescale * row_sum.at(i, 0);
    for (std::int64_t j = 0; j < scores.columns(); ++j) {
      scores.at(i, j) = std::exp(scores.at(i, j) - maximum);
      sum += scores.at(i, j);
    }
    for (std::int64_t c = 0; c < o.columns(); ++c) o.at(i, c) *= rescale;
    row_max.at(i, 0) = sum > 0.0 ? maximum : -INFINITY;
    row_sum.at(i, 0) = sum;
  }
}

/// One tile of the forward, everything already in fast memory.
void forward_tile(const IoProblem& problem, const Tile& q, const Tile& k, const Tile& v, const Pair& pair, Tile& scores,
                  Tile& row_max, Tile& row_sum, Tile& o) {
  multiply_transposed(scale_of(problem), q, k, scores);
  hide(problem.mask, pair, scores);
  if (scores.computes()) online_softmax(scores, row_max, row_sum, o);
  add_product(1.0, scores, v, o);
}

/// o_i * row_sum_i: back from attention to its unscaled sum.
void unscale(const Tile& row_sum, Tile& o) {
  if (!o.computes()) return;
  for (std::int64_t i = 0; i < o.rows(); ++i) {
    for (std::int64_t c = 0; c < o.columns(); ++c) o.at(i, c) *= row_sum.at(i, 0);
  }
}

/// o_i / row_sum_i, 0 where no key was seen.
void divide(const Tile& row_sum, Tile& o) {
  if (!o.computes()) return;
  for (std::int64_t i = 0; i < o.rows(); ++i) {
    const double factor = row_sum.at(i, 0) > 0.0 ? 1.0 / row_sum.at(i, 0) : 0.0;
    for (std::int64_t c = 0; c < o.columns(); ++c) o.at(i, c) *= factor;
  }
}

}  // namespace

Result<BlockSizes> flash_attention_forward(const IoProblem& problem, FastMemory& fast, SlowMemory& slow) {
  const Result<BlockSizes> sizes = block_sizes(problem, {.outer_matrices = 2, .inner_matrices = 2, .inner_vectors = 2});
  if (!sizes.ok()) return sizes.status();
  initialize(fast, slow.o, 0.0);
  initialize(fast, slow.row_sum, 0.0);
  initialize(fast, slow.row_max, -INFINITY);

  const std::int64_t d = problem.head_dim;
  Tile k(fast, sizes->outer, d), v(fast, sizes->outer, d);
  Tile q(fast, sizes->inner, d), o(fast, sizes->inner, d);
  Tile row_max(fast, sizes->inner, 1), row_sum(fast, sizes->inner, 1);
  Tile scores(fast, sizes->inner, sizes->outer);
  for_blocks({0, problem.seqlen}, sizes->outer, [&](Range keys) {
    k.load(slow.k, keys);
    v.load(slow.v, keys);
    for_blocks({0, problem.seqlen}, sizes->inner, [&](Range queries) {
      q.load(slow.q, queries);
      o.load(slow.o, queries);
      row_sum.load(slow.row_sum, queries);
      row_max.load(slow.row_max, queries);
      unscale(row_sum, o);
      forward_tile(problem, q, k, v, {queries, keys}, scores, row_max, row_sum, o);
      divide(row_sum, o);
      o.store(slow.o, queries);
      row_sum.store(slow.row_sum, queries);
      row_max.store(slow.row_max, queries);
    });
  });
  return *sizes;
}

Result<BlockSizes> flash_attention_2_forward(const IoProblem& problem, FastMemory& fast, SlowMemory& slow) {
  const Result<BlockSizes> sizes = block_sizes(problem, {.outer_matrices = 2, .outer_vectors = 2, .inner_matrices = 2});
  if (!sizes.ok()) return sizes.status();

  const std::int64_t d = problem.head_dim;
  Tile q(fast, sizes->outer, d), o(fast, sizes->outer, d);
  Tile row_max(fast, sizes->outer, 1), row_sum(fast, sizes->outer, 1);
  Tile k(fast, sizes->inner, d), v(fast, sizes->inner, d);
  Tile scores(fast, sizes->outer, sizes->inner);
  for_blocks({0, problem.seqlen}, sizes->outer, [&](Range queries) {
    q.load(slow.q, queries);
    o.fill(queries.size(), d, 0.0);
    row_max.fill(queries.size(), 1, -INFINITY);
    row_sum.fill(queries.size(), 1, 0.0);
    for_visible_blocks(problem, Side::queries, queries, sizes->inner, [&](Range keys) {
      k.load(slow.k, keys);
      v.load(slow.v, keys);
      forward_tile(problem, q, k, v, {queries, keys}, scores, row_max, row_sum, o);
    });
    divide(row_sum, o);
    o.store(slow.o, queries);
    add_log(row_sum, row_max);  // LSE = m + ln(l), in the place of m
    row_max.store(slow.lse, queries);
  });
  return *sizes;
}

}  // namespace strobe::bench
