// SPDX-License-Identifier: Apache-2.0
// The float64 reference with bounds: hand-computed cases.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "matches_reference.h"
#include "reference/bound/reference.h"

namespace strobe::test {
namespace {

// Two keys, one query, head_dim 1: s = (q, 0), so that p = sigmoid(q) and 1 - p.
struct TwoKeys {
  std::array<float, 1> q{1.5F};
  std::array<float, 2> k{1.0F, 0.0F};
  std::array<float, 2> v{3.0F, -1.0F};
  std::array<float, 1> o{};
  std::array<float, 1> lse{};
  std::array<float, 1> d_o{2.0F};
  std::array<float, 1> d_lse{0.5F};
  std::array<float, 1> dq{};
  std::array<float, 2> dk{};
  std::array<float, 2> dv{};
  AttentionOptions options{.scale = 1.0F};

  ForwardArguments forward_arguments() {
    ForwardArguments arguments;
    arguments.q = tensor(q.data(), {1, 1, 1, 1});
    arguments.k = tensor(k.data(), {1, 2, 1, 1});
    arguments.v = tensor(v.data(), {1, 2, 1, 1});
    arguments.o = tensor(o.data(), {1, 1, 1, 1});
    return arguments;
  }

  BackwardArguments backward_arguments() {
    BackwardArguments arguments;
    arguments.q = tensor(q.data(), {1, 1, 1, 1});
    arguments.k = tensor(k.data(), {1, 2, 1, 1});
    arguments.v = tensor(v.data(), {1, 2, 1, 1});
    arguments.o = tensor(o.data(), {1, 1, 1, 1});
    arguments.lse = tensor(lse.data(), {1, 1, 1});
    arguments.d_o = tensor(d_o.data(), {1, 1, 1, 1});
    arguments.d_lse = tensor(d_lse.data(), {1, 1, 1});
    arguments.dq = tensor(dq.data(), {1, 1, 1, 1});
    arguments.dk = tensor(dk.data(), {1, 2, 1, 1});
    arguments.dv = tensor(dv.data(), {1, 2, 1, 1});
    return arguments;
  }
};

TEST(Reference, ForwardOfTwoKeysIsASigmoid) {
  TwoKeys call;
  const reference::ForwardResult result = reference::forward(call.forward_arguments(), call.options);
  const double p = 1.0 / (1.0 + std::exp(-1.5));
  EXPECT_NEAR(result.o.value[0], 3.0 * p - (1.0 - p), 1e-15);
  EXPECT_NEAR(result.lse.value[0], std::log1p(std::exp(1.5)), 1e-15);
}

TEST(Reference, BackwardOfTwoKeysIsASigmoidsDerivative) {
  TwoKeys call;
  const reference::BackwardResult result = reference::backward(call.backward_arguments(), call.options);
  const double p = 1.0 / (1.0 + std::exp(-1.5));
  const double d_s = p * (1.0 - p) * (3.0 + 1.0) * 2.0;  // p (1 - p) (v_0 - v_1) dO
  EXPECT_NEAR(result.dq.value[0], d_s + 0.5 * p, 1e-15);
  EXPECT_NEAR(result.dk.value[0], (d_s + 0.5 * p) * 1.5, 1e-15);
  EXPECT_NEAR(result.dk.value[1], (-d_s + 0.5 * (1.0 - p)) * 1.5, 1e-15);
  EXPECT_NEAR(result.dv.value[0], 2.0 * p, 1e-15);
  EXPECT_NEAR(result.dv.value[1], 2.0 * (1.0 - p), 1e-15);
}

TEST(Reference, SoftcapBendsTheScore) {
  TwoKeys call;
  call.options.softcap = 2.0F;
  const reference::ForwardResult result = reference::forward(call.forward_arguments(), call.options);
  const double score = 2.0 * std::tanh(1.5 / 2.0);
  EXPECT_NEAR(result.lse.value[0], std::log1p(std::exp(score)), 1e-15);
}

TEST(Reference, EqualScoresAverageV) {
  AttentionCase attention{.head_dim = 5, .head_dim_v = 3, .q = {.rows = 4}, .k = {.rows = 7}};
  CaseTensors tensors(attention);
  for (std::int64_t index = 0; index < tensors.q.size(); ++index) tensors.q.set(index, 0.0);
  const reference::ForwardResult result = reference::forward(tensors.forward_arguments());
  for (std::int64_t column = 0; column < 3; ++column) {
    double mean = 0.0;
    for (std::int64_t key = 0; key < 7; ++key) mean += tensors.v.get(key * 3 + column) / 7.0;
    EXPECT_NEAR(result.o.value[column], mean, 1e-15);
  }
  EXPECT_NEAR(result.lse.value[0], std::log(7.0), 1e-15);
}

// Which keys a query sees is read off V = identity: O is zero exactly where a key is masked.
std::vector<std::vector<int>> visible_pattern(std::int64_t seqlen_q, std::int64_t seqlen_k, AttentionOptions options) {
  AttentionCase attention{.head_dim = 2, .head_dim_v = seqlen_k, .q = {.rows = seqlen_q}, .k = {.rows = seqlen_k}};
  CaseTensors tensors(attention);
  for (std::int64_t index = 0; index < tensors.v.size(); ++index) {
    tensors.v.set(index, index / seqlen_k == index % seqlen_k ? 1.0 : 0.0);
  }
  const reference::ForwardResult result = reference::forward(tensors.forward_arguments(), options);
  std::vector<std::vector<int>> pattern(seqlen_q);
  for (std::int64_t index = 0; index < seqlen_q * seqlen_k; ++index) {
    pattern[index / seqlen_k].push_back(result.o.value[index] != 0.0 ? 1 : 0);
  }
  return pattern;
}

using Pattern = std::vector<std::vector<int>>;

TEST(Reference, CausalBottomRightLetsTheLastQuerySeeEveryKey) {
  const AttentionOptions options{.causal = CausalMask::bottom_right};
  EXPECT_EQ(visible_pattern(2, 4, options), (Pattern{{1, 1, 1, 0}, {1, 1, 1, 1}}));
  EXPECT_EQ(visible_pattern(4, 2, options), (Pattern{{0, 0}, {0, 0}, {1, 0}, {1, 1}}));
}

TEST(Reference, CausalTopLeftLetsTheFirstQuerySeeTheFirstKey) {
  const AttentionOptions options{.causal = CausalMask::top_left};
  EXPECT_EQ(visible_pattern(2, 4, options), (Pattern{{1, 0, 0, 0}, {1, 1, 0, 0}}));
  EXPECT_EQ(visible_pattern(4, 2, options), (Pattern{{1, 0}, {1, 1}, {1, 1}, {1, 1}}));
}

TEST(Reference, WindowIsCentredOnTheDiagonal) {
  EXPECT_EQ(visible_pattern(3, 5, {.window = {1, 0}}), (Pattern{{0, 1, 1, 0, 0}, {0, 0, 1, 1, 0}, {0, 0, 0, 1, 1}}));
  EXPECT_EQ(visible_pattern(3, 5, {.window = {-1, 1}}), (Pattern{{1, 1, 1, 1, 0}, {1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}}));
  EXPECT_EQ(visible_pattern(3, 5, {.window = {0, -1}}), (Pattern{{0, 0, 1, 1, 1}, {0, 0, 0, 1, 1}, {0, 0, 0, 0, 1}}));
  EXPECT_EQ(visible_pattern(3, 3, {.causal = CausalMask::top_left, .window = {1, 2}}),
            (Pattern{{1, 0, 0}, {1, 1, 0}, {0, 1, 1}}));
  EXPECT_EQ(visible_pattern(2, 3, {.causal = CausalMask::top_left, .window = {0, 2}}), (Pattern{{1, 0, 0}, {0, 1, 0}}));
}

TEST(Reference, WindowsAsLargeAs64BitsSeeEverything) {
  const std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(visible_pattern(2, 2, {.window = {largest, largest}}), (Pattern{{1, 1}, {1, 1}}));
}

TEST(Reference, RowsWithoutKeysAndUnusedRowsAreZeroWithLseMinusInfinity) {
  AttentionCase attention{.batch = 2, .head_dim = 3, .head_dim_v = 2};
  attention.q = {.rows = 9, .cu_seqlens = {0, 4, 7}, .seqused = {2, 3}};
  attention.k = {.rows = 6, .cu_seqlens = {0, 4, 6}, .seqused = {4, 0}};
  CaseTensors tensors(attention);
  const reference::ForwardResult result = reference::forward(tensors.forward_arguments());
  for (std::int64_t row = 0; row < 9; ++row) {
    const bool sees = row < 2;
    EXPECT_EQ(result.o.value[row * 2] != 0.0, sees) << row;
    EXPECT_EQ(result.lse.value[row] == -kInfinity, !sees) << row;
  }
}

}  // namespace
}  // namespace strobe::test
