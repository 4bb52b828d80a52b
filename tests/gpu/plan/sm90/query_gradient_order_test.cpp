// SPDX-License-Identifier: Apache-2.0
// The order in which blocks of keys add to dQ, for random masks and lengths. Device code, compiled for the host: the
// build defines CUDA's keywords.
#include <algorithm>
#include <random>
#include <vector>

// NOLINTBEGIN(misc-unused-using-decls): device code has them without a namespace.
using std::max;
using std::min;
// NOLINTEND(misc-unused-using-decls)
#include "kernels/sm90/backward/joint/query_gradient_order.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace strobe::sm90::backward {
namespace {

/// A call of one launch, in numbers that kernels read.
struct Case {
  Params params{};
  std::vector<int> seqused_k;
  std::vector<int> seqused_q;
};

class RandomCase {
 public:
  explicit RandomCase(unsigned seed) : random_(seed) {}

  int below(int end) { return std::uniform_int_distribution<int>(0, end - 1)(random_); }

  template <Config C>
  Case make() {
    Case c;
    Params& params = c.params;
    const int batch = 1 + below(3);
    const int seqlen_q = 1 + below(1200);
    const int seqlen_k = 1 + below(1500);
    params.sequences.batch = params.sequences.sequences = batch;
    params.sequences.seqlen_q = seqlen_q;
    params.sequences.seqlen_k = seqlen_k;
    params.visibility = {.window_left = C.rule.mask_left ? below(seqlen_k) : -1,
                         .window_right = C.rule.mask_right ? (below(2) != 0 ? 0 : below(300)) : -1,
                         .bottom_right = below(2),
                         .chunk = 0};
    if (C.rule.chunked)
      params.visibility = {.window_left = 0, .window_right = 0, .bottom_right = 1, .chunk = 1 + below(700)};
    if (C.rule.varlen) {
      for (int b = 0; b < batch; ++b) {
        c.seqused_q.push_back(below(seqlen_q + 1));
        c.seqused_k.push_back(below(seqlen_k + 1));
      }
      params.sequences.seqused_q = c.seqused_q.data();
      params.sequences.seqused_k = c.seqused_k.data();
    }
    params.heads_per_kv = 1 + below(3);
    params.heads_kv = 1 + below(3);
    params.heads = params.heads_kv * params.heads_per_kv;
    params.m_blocks = (seqlen_q + C.block_m - 1) / C.block_m;
    params.n_blocks = params.key_blocks = (seqlen_k + block_n(C) - 1) / block_n(C);
    params.query_blocks = params.m_blocks * batch;
    params.items = params.n_blocks * params.heads_kv * batch;
    params.section_heads = 1 + below(params.heads_kv * batch);
    return c;
  }

 private:
  std::mt19937 random_;
};

/// One visit of an item at a block of queries.
struct Visit {
  int item, n;
  bool first, last;
  int before;  // the key block that it waits for
};

/// Everyone at a block comes after the one it waits for, which is an item that has started before; exactly one is the
/// first and one, the last that comes, is the last.
template <Config C>
void expect_one_order(unsigned seed) {
  RandomCase random(seed);
  Case c = random.make<C>();
  const Params& params = c.params;
  const int heads = params.heads_kv * params.sequences.batch;
  std::vector<std::vector<Visit>> visits(static_cast<std::size_t>(heads * params.m_blocks));
  for (int item = 0; item < params.items; ++item) {
    const Work work = work_of<C>(params, item);
    const QueryGradientOrder order = QueryGradientOrder::of<C>(params, work);
    int steps = 0;
    for (int m = order.m_first; m != order.m_past; m += order.direction, ++steps) {
      ASSERT_LT(steps, params.m_blocks);
      const int block = work.launch_head * params.m_blocks + m;
      visits[static_cast<std::size_t>(block)].push_back(
          {item, work.n, order.first(m), order.last(m), work.n + work.direction});
    }
    ASSERT_EQ(steps, work.steps());
  }
  for (const std::vector<Visit>& block : visits) {
    for (std::size_t i = 0; i < block.size(); ++i) {  // in the order in which items start
      EXPECT_EQ(block[i].first, i == 0);
      EXPECT_EQ(block[i].last, i + 1 == block.size());
      if (i > 0) {
        EXPECT_EQ(block[i].before, block[i - 1].n);
      }
    }
  }
}

template <Config C>
void expect_one_order_in_many() {
  for (unsigned seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    expect_one_order<C>(seed);
    if (testing::Test::HasFailure()) return;
  }
}

constexpr Config config_of(const ScoreRule& rule, int head_dim, bool alternates = false) {
  Config config{.rule = rule, .head_dim = head_dim, .head_dim_v = head_dim, .ordered = true, .alternates = alternates};
  if (head_dim == 64) config.block_m = 128;
  return config;
}

/// Whether or not every second section begins with its shortest items.
template <ScoreRule rule, int head_dim>
void for_both_orders() {
  expect_one_order_in_many<config_of(rule, head_dim, false)>();
  expect_one_order_in_many<config_of(rule, head_dim, true)>();
}

TEST(QueryGradientOrder, Unmasked) {
  expect_one_order_in_many<config_of({}, 64)>();
  expect_one_order_in_many<config_of({}, 128)>();
}

TEST(QueryGradientOrder, Causal) {
  for_both_orders<ScoreRule{.mask_right = true}, 64>();
  for_both_orders<ScoreRule{.mask_right = true}, 128>();
}

TEST(QueryGradientOrder, Window) {
  expect_one_order_in_many<config_of({.mask_left = true}, 64)>();
  for_both_orders<ScoreRule{.mask_right = true, .mask_left = true}, 64>();
}

TEST(QueryGradientOrder, Chunks) {
  for_both_orders<ScoreRule{.mask_right = true, .mask_left = true, .chunked = true}, 64>();
}

TEST(QueryGradientOrder, UsedLengths) {
  expect_one_order_in_many<config_of({.varlen = true}, 64)>();
  for_both_orders<ScoreRule{.mask_right = true, .varlen = true}, 64>();
  expect_one_order_in_many<config_of({.mask_right = true, .mask_left = true, .varlen = true}, 128)>();
}

}  // namespace
}  // namespace strobe::sm90::backward
