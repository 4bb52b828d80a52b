// SPDX-License-Identifier: Apache-2.0
// strobe::sparse_backward on the CPU: float64 with the bound of every element, central differences, bits.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "attention/seeds.h"
#include "gradient_case.h"
#include "reference/sparse.h"

namespace strobe::test {
namespace {

TEST(SparseBackward, RandomConfigurationsKeepToTheBound) {
  for (const std::uint64_t seed : chosen_seeds(250)) {
    GradientCase g(random_trainable_shape(seed), seed);
    SCOPED_TRACE("STROBE_SEED=" + std::to_string(seed) + ": " + describe(g.one.shape));
    const Status status = sparse_backward(g.arguments, g.one.shape.options);
    ASSERT_TRUE(status.ok()) << status.message();
    const reference::SparseBackwardResult expected = reference::sparse_backward(g.arguments, g.one.shape.options);
    g.expect_gradients(expected);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(SparseBackward, ThreadsAndRepetitionsChangeNoBit) {
  for (const std::uint64_t seed : chosen_seeds(40)) {
    GradientCase g(random_trainable_shape(seed), seed);
    SCOPED_TRACE("STROBE_SEED=" + std::to_string(seed) + ": " + describe(g.one.shape));
    ASSERT_TRUE(sparse_backward(g.arguments, g.one.shape.options, {.threads = 1}).ok());
    std::vector<std::vector<std::byte>> bytes;
    for (const GuardedTensor* output : g.outputs()) bytes.push_back(output->element_bytes());
    for (const int threads : {3, 8}) {
      for (GuardedTensor* output : g.outputs()) output->poison();
      ASSERT_TRUE(sparse_backward(g.arguments, g.one.shape.options, {.threads = threads}).ok());
      std::size_t i = 0;
      for (const GuardedTensor* output : g.outputs()) EXPECT_EQ(output->element_bytes(), bytes[i++]);
    }
  }
}

/// sum(dO * O) + sum(dLSE * LSE) of the reference's float64 forward.
double loss(const GradientCase& g) {
  const reference::SparseForwardResult result = reference::sparse_forward(g.arguments.forward, g.one.shape.options);
  double sum = 0.0;
  for (std::int64_t i = 0; i < g.d_o.size(); ++i) sum += g.d_o.get(i) * result.o.value[static_cast<std::size_t>(i)];
  for (std::int64_t i = 0; g.arguments.d_lse.given() && i < g.d_lse.size(); ++i) {
    sum += g.d_lse.get(i) * result.lse.value[static_cast<std::size_t>(i)];
  }
  return sum;
}

/// The reference itself, whose gradients the others are held to, against differences of its forward.
TEST(SparseBackward, TheReferenceAgreesWithCentralDifferences) {
  SparseShape shape;
  shape.group = 2;
  shape.heads_kv = 2;
  shape.head_dim = 6;
  shape.head_dim_v = 4;
  shape.sink = true;
  shape.options.softcap = 3.0F;
  shape.sources = {SourceShape{.topk = 7, .max_keys = 9}, SourceShape{.v_apart = false, .topk = 5, .max_keys = 6}};
  GradientCase g(shape, 11);
  g.arguments.d_lse = g.d_lse.view();
  const reference::SparseBackwardResult expected = reference::sparse_backward(g.arguments, shape.options);
  const auto check = [&](const char* name, GuardedTensor& tensor, const reference::BoundedTensor& gradient) {
    for (std::int64_t i = 0; i < tensor.size(); i += 3) {
      const double x = tensor.get(i);
      if (std::isnan(x)) continue;  // a row that no list names
      constexpr double kStep = 0x1p-7;
      tensor.set(i, x + kStep);
      const double more = loss(g);
      const double up = tensor.get(i);
      tensor.set(i, x - kStep);
      const double less = loss(g);
      const double down = tensor.get(i);
      tensor.set(i, x);
      EXPECT_NEAR((more - less) / (up - down), gradient.value[static_cast<std::size_t>(i)], 1e-3) << name << " " << i;
    }
  };
  check("q", g.one.q, expected.dq);
  check("sink", g.one.sink, expected.d_sink);
  check("k 0", *g.one.tensors[0]->k, expected.dk[0]);
  check("v 0", *g.one.tensors[0]->v, expected.dv[0]);
  check("k 1", *g.one.tensors[1]->k, expected.dk[1]);
}

/// Weights of 64 MiB do not hold these queries' at once.
TEST(SparseBackward, WavesOfQueriesKeepToTheBound) {
  SparseShape shape;
  shape.batch = 1;
  shape.max_queries = 70;
  shape.group = 64;
  shape.head_dim = 8;
  shape.head_dim_v = 8;
  shape.sources = {SourceShape{.v_apart = false, .topk = 2500, .max_keys = 300}};
  GradientCase g(shape, 2);
  ASSERT_TRUE(sparse_backward(g.arguments).ok());
  const reference::SparseBackwardResult expected = reference::sparse_backward(g.arguments);
  g.expect_gradients(expected);
}

TEST(SparseBackward, WhatIsWrongIsSaidAndNothingIsWritten) {
  SparseShape shape;
  shape.sources = {SourceShape{}};
  const auto expect = [&](const auto& change, const char* message) {
    GradientCase g(shape, 5);
    change(g);
    const Status status = sparse_backward(g.arguments);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.message(), message);
    for (const GuardedTensor* output : g.outputs()) EXPECT_TRUE(output->untouched());
  };
  expect([](GradientCase& g) { g.arguments.forward.lse = {}; }, "lse is missing: give what the forward wrote");
  expect([](GradientCase& g) { g.arguments.d_o = {}; }, "d_o is missing: give a tensor like o");
  expect([](GradientCase& g) { g.arguments.d_o.dtype = DType::bfloat16; },
         "d_o is bfloat16: it must be float32, as o is");
  expect([](GradientCase& g) { g.arguments.dq.shape[1] = 1; },
         "dq has shape [2, 1, 4, 32] and q [2, 3, 4, 32]: they must be equal");
  expect([](GradientCase& g) { g.arguments.gradients[0].dk = {}; },
         "gradients[0].dk is missing: give a tensor like sources[0].k");
  expect([](GradientCase& g) { g.arguments.gradients[1].dk = g.dk[0].view(); },
         "gradients[1] is given without sources[1].k");
  expect([](GradientCase& g) { g.arguments.forward.sources[0].in_pool = true; },
         "sources[0] has a pool: a backward takes k and v of floats, batched or packed");
  expect(
      [](GradientCase& g) {
        g.arguments.forward.sources[0].v = {};
        g.arguments.gradients[0].dv = g.dv[0].view();
      },
      "gradients[0].dv is given, and sources[0].v is not: gradients[0].dk has both gradients");
  expect([](GradientCase& g) { g.arguments.d_sink = g.dq.view(); }, "d_sink is given without sink");
  expect([](GradientCase& g) { g.arguments.dq = g.one.q.view(); },
         "dq overlaps q: outputs must not share memory with any other tensor");
  expect([](GradientCase& g) { g.one.tensors[0]->indices.set(2, 40); },
         "sources[0].indices names 40 at place 2 of query 0, head 0 of sequence 0: it must be -1 or less than 40");
}

}  // namespace
}  // namespace strobe::test
