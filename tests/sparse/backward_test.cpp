// SPDX-License-Identifier: Apache-2.0
// strobe::sparse_backward on the CPU: float64 with the bound of every element, central differences, bits.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "attention/seeds.h"
#include "reference/sparse.h"
#include "sparse_case.h"

namespace strobe::test {
namespace {

/// A shape whose sources have gradients.
SparseShape random_trainable_shape(std::uint64_t seed) {
  SparseShape shape = random_shape(seed);
  Random random(seed + 1'000'000);
  shape.lse = true;
  shape.head_dim = random.one_of<std::int64_t>({1, 8, 40, 64, 100, 128});
  if (random.chance(0.05)) shape.head_dim = 576;
  shape.head_dim_v = random.one_of<std::int64_t>({shape.head_dim, 24, 64, 70});
  for (SourceShape& s : shape.sources) {
    s.k_format = s.v_format = {};
    s.layout = random.one_of({KeyLayout::batched, KeyLayout::packed});
    s.v_apart = shape.head_dim_v > shape.head_dim || random.chance(0.5);
    s.topk = std::min<std::int64_t>(s.topk, 130);
  }
  return shape;
}

/// The forward's case, run, with random dO and dLSE and places for the gradients.
class Gradients {
 public:
  Gradients(const SparseShape& shape, std::uint64_t seed) : one(shape, seed) {
    Random random(seed + 7);
    const Placement placement{.layout = random.one_of({Layout::contiguous, Layout::padded}), .guard = Guard::bytes};
    const auto like = [&](const ConstTensorView& view) {
      const std::vector<std::int64_t> extents(view.shape.begin(), view.shape.begin() + view.rank);
      return GuardedTensor(view.dtype, extents, placement, random);
    };
    const SparseForwardArguments& a = one.arguments();
    d_o = like(a.o);
    d_lse = like(a.lse);
    dq = like(a.q);
    for (std::int64_t i = 0; i < d_o.size(); ++i) d_o.set(i, random.normal());
    for (std::int64_t i = 0; i < d_lse.size(); ++i) d_lse.set(i, random.normal());
    const Status status = sparse_forward(a, shape.options);
    EXPECT_TRUE(status.ok()) << status.message();
    arguments.forward = a;
    arguments.d_o = d_o.view();
    if (random.chance(0.5)) arguments.d_lse = d_lse.view();
    arguments.dq = dq.view();
    if (shape.sink) {
      d_sink = like(a.sink);
      arguments.d_sink = d_sink.view();
    }
    for (std::size_t i = 0; i < shape.sources.size(); ++i) {
      dk[i] = like(a.sources[i].k);
      arguments.gradients[i].dk = dk[i].view();
      if (!a.sources[i].v.given()) continue;
      dv[i] = like(a.sources[i].v);
      arguments.gradients[i].dv = dv[i].view();
    }
  }

  std::vector<GuardedTensor*> outputs() {
    std::vector<GuardedTensor*> all = {&dq};
    if (arguments.d_sink.given()) all.push_back(&d_sink);
    for (std::size_t i = 0; i < arguments.gradients.size(); ++i) {
      if (arguments.gradients[i].dk.given()) all.push_back(&dk[i]);
      if (arguments.gradients[i].dv.given()) all.push_back(&dv[i]);
    }
    return all;
  }

  SparseCase one;
  GuardedTensor d_o, d_lse, dq, d_sink;
  std::array<GuardedTensor, kMaxSparseSources> dk, dv;
  SparseBackwardArguments arguments;
};

void expect_gradient(const char* name, const ConstTensorView& actual, const reference::BoundedTensor& expected) {
  const reference::WorstElement worst = reference::worst_element(actual, expected);
  EXPECT_LE(worst.ratio, 1.0) << name << ": " << reference::describe(worst, actual);
}

TEST(SparseBackward, RandomConfigurationsKeepToTheBound) {
  for (const std::uint64_t seed : chosen_seeds(250)) {
    Gradients g(random_trainable_shape(seed), seed);
    SCOPED_TRACE("STROBE_SEED=" + std::to_string(seed) + ": " + describe(g.one.shape));
    const Status status = sparse_backward(g.arguments, g.one.shape.options);
    ASSERT_TRUE(status.ok()) << status.message();
    const reference::SparseBackwardResult expected = reference::sparse_backward(g.arguments, g.one.shape.options);
    expect_gradient("dq", g.dq.view(), expected.dq);
    if (g.arguments.d_sink.given()) expect_gradient("d_sink", g.d_sink.view(), expected.d_sink);
    for (std::size_t i = 0; i < g.arguments.gradients.size(); ++i) {
      if (g.arguments.gradients[i].dk.given()) expect_gradient("dk", g.dk[i].view(), expected.dk[i]);
      if (g.arguments.gradients[i].dv.given()) expect_gradient("dv", g.dv[i].view(), expected.dv[i]);
    }
    for (const GuardedTensor* output : g.outputs()) EXPECT_TRUE(output->guards_intact());
    if (testing::Test::HasFailure()) return;
  }
}

TEST(SparseBackward, ThreadsAndRepetitionsChangeNoBit) {
  for (const std::uint64_t seed : chosen_seeds(40)) {
    Gradients g(random_trainable_shape(seed), seed);
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
double loss(const Gradients& g) {
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
  Gradients g(shape, 11);
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
  Gradients g(shape, 2);
  ASSERT_TRUE(sparse_backward(g.arguments).ok());
  const reference::SparseBackwardResult expected = reference::sparse_backward(g.arguments);
  expect_gradient("dq", g.dq.view(), expected.dq);
  expect_gradient("dk", g.dk[0].view(), expected.dk[0]);
}

TEST(SparseBackward, WhatIsWrongIsSaidAndNothingIsWritten) {
  SparseShape shape;
  shape.sources = {SourceShape{}};
  const auto expect = [&](const auto& change, const char* message) {
    Gradients g(shape, 5);
    change(g);
    const Status status = sparse_backward(g.arguments);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.message(), message);
    for (const GuardedTensor* output : g.outputs()) EXPECT_TRUE(output->untouched());
  };
  expect([](Gradients& g) { g.arguments.forward.lse = {}; }, "lse is missing: give what the forward wrote");
  expect([](Gradients& g) { g.arguments.d_o = {}; }, "d_o is missing: give a tensor like o");
  expect([](Gradients& g) { g.arguments.d_o.dtype = DType::bfloat16; }, "d_o is bfloat16: it must be float32, as o is");
  expect([](Gradients& g) { g.arguments.dq.shape[1] = 1; },
         "dq has shape [2, 1, 4, 32] and q [2, 3, 4, 32]: they must be equal");
  expect([](Gradients& g) { g.arguments.gradients[0].dk = {}; },
         "gradients[0].dk is missing: give a tensor like sources[0].k");
  expect([](Gradients& g) { g.arguments.gradients[1].dk = g.dk[0].view(); },
         "gradients[1] is given without sources[1].k");
  expect([](Gradients& g) { g.arguments.forward.sources[0].in_pool = true; },
         "sources[0] has a pool: a backward takes k and v of floats, batched or packed");
  expect(
      [](Gradients& g) {
        g.arguments.forward.sources[0].v = {};
        g.arguments.gradients[0].dv = g.dv[0].view();
      },
      "gradients[0].dv is given, and sources[0].v is not: gradients[0].dk has both gradients");
  expect([](Gradients& g) { g.arguments.d_sink = g.dq.view(); }, "d_sink is given without sink");
  expect([](Gradients& g) { g.arguments.dq = g.one.q.view(); },
         "dq overlaps q: outputs must not share memory with any other tensor");
  expect([](Gradients& g) { g.one.tensors[0]->indices.set(2, 40); },
         "sources[0].indices names 40 at place 2 of query 0, head 0 of sequence 0: it must be -1 or less than 40");
}

}  // namespace
}  // namespace strobe::test
