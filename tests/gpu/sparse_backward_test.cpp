// SPDX-License-Identifier: Apache-2.0
// strobe::sparse_backward on a GPU against float64: every element within its bound, the same bits every time, whatever
// the lists say.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attention/seeds.h"
#include "captured_graph.h"
#include "checked_process.h"
#include "device_copies.h"
#include "gpu_test.h"
#include "reference/bound/arithmetic.h"
#include "reference/sparse.h"
#include "sparse/gradient_case.h"
#include "tested_engine.h"

namespace strobe::test {
namespace {

class GpuSparseBackward : public FamilyTest {
 protected:
  /// What the call says of a case; its gradients are copied back where it runs.
  Status differentiate(GradientCase& g) {
    DeviceCopies copies(device());
    const SparseBackwardArguments arguments =
        g.placed([&](const GuardedTensor& tensor) { return copies.place(tensor); });
    Status status = sparse_backward(arguments, g.one.shape.options, tested_execution(stream().get()));
    copies.download(g.outputs());
    return status;
  }

  void run(GradientCase& g, std::uint64_t seed) {
    SCOPED_TRACE("STROBE_SEED=" + std::to_string(seed) + ": " + describe(g.one.shape));
    const Status status = differentiate(g);
    ASSERT_TRUE(status.ok()) << status.message();
    g.expect_gradients(reference::sparse_backward(g.arguments, g.one.shape.options,
                                                  reference::arithmetic_of("sm80", g.one.shape.dtype)));
    std::vector<std::vector<std::byte>> bytes;
    for (const GuardedTensor* output : g.outputs()) bytes.push_back(output->element_bytes());
    for (GuardedTensor* output : g.outputs()) output->poison();
    ASSERT_TRUE(differentiate(g).ok());
    std::size_t i = 0;
    for (const GuardedTensor* output : g.outputs()) {
      EXPECT_EQ(output->element_bytes(), bytes[i++]) << "another run gave other bits";
    }
  }
};

INSTANTIATE_TEST_SUITE_P(, GpuSparseBackward, kFamilies, family_name);

TEST_P(GpuSparseBackward, RandomCallsKeepToTheBound) {
  for (const std::uint64_t seed : chosen_seeds(100)) {
    GradientCase g(random_trainable_gpu_shape(seed), seed);
    run(g, seed);
    if (HasFailure()) return;
  }
}

SparseShape trained_shape() {
  SparseShape shape;
  shape.dtype = DType::bfloat16;
  shape.head_dim = shape.head_dim_v = 64;
  shape.sources[0].dtype = shape.dtype;
  return shape;
}

/// Latent rows, key and value in one, beside rows of another source, and a sink.
TEST_P(GpuSparseBackward, LatentRowsKeepToTheBound) {
  for (const std::int64_t group : {8, 64, 128}) {
    SparseShape shape = trained_shape();
    shape.group = group;
    shape.head_dim = 576;
    shape.head_dim_v = 512;
    shape.sink = true;
    shape.sources = {SourceShape{.dtype = shape.dtype, .v_apart = false, .topk = 150, .max_keys = 300, .causal = true},
                     SourceShape{.dtype = shape.dtype, .topk = 40, .max_keys = 60, .lengths = true}};
    GradientCase g(shape, 5);
    run(g, 5);
    if (HasFailure()) return;
  }
}

/// Less than 100 queries' shares are in the workspace at once, and rows that all of them list are added to in each
/// wave.
TEST_P(GpuSparseBackward, WavesOfQueriesKeepToTheBound) {
  SparseShape shape = trained_shape();
  shape.batch = 1;
  shape.max_queries = 130;
  shape.group = 2;
  shape.sources[0].block_size = 128;
  shape.sources[0].topk = 80;
  shape.sources[0].max_keys = 500;
  GradientCase g(shape, 2);
  run(g, 2);
}

/// Of a captured call lists and values may change.
TEST_P(GpuSparseBackward, ReplaysReadWhatListsNameThen) {
  GradientCase first(trained_shape(), 3);
  GradientCase second(trained_shape(), 4);
  DeviceCopies copies(device());
  const SparseBackwardArguments arguments =
      first.placed([&](const GuardedTensor& tensor) { return copies.place(tensor); });
  const auto enqueue = [&] {
    const Status status = sparse_backward(arguments, {}, tested_execution(stream().get()));
    EXPECT_TRUE(status.ok()) << status.message();
  };
  enqueue();  // kernels are loaded
  const CapturedGraph graph(device(), stream(), enqueue);
  const auto replace = [&](GuardedTensor& tensor, const GuardedTensor& by) {
    for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, by.get(i));
    copies.upload(tensor);
  };
  replace(first.one.q, second.one.q);
  replace(first.one.o, second.one.o);
  replace(first.one.lse, second.one.lse);
  replace(*first.one.tensors[0]->k, *second.one.tensors[0]->k);
  replace(*first.one.tensors[0]->v, *second.one.tensors[0]->v);
  replace(first.one.tensors[0]->indices, second.one.tensors[0]->indices);
  replace(first.d_o, second.d_o);
  if (first.arguments.d_lse.given()) replace(first.d_lse, second.d_lse);
  second.arguments.d_lse = first.arguments.d_lse.given() ? second.d_lse.view() : ConstTensorView{};
  ASSERT_TRUE(graph.launch());
  copies.download(first.outputs());
  ASSERT_TRUE(differentiate(second).ok());
  for (std::size_t i = 0; i < first.outputs().size(); ++i) {
    EXPECT_EQ(first.outputs()[i]->element_bytes(), second.outputs()[i]->element_bytes());
  }
}

/// dV of a row is the sum of what queries have dO for it, rounded after each in their order: numbers of which some are
/// lost beside others tell every other order. Places of the queries' lists lie in all warps and in several passes of
/// the kernel that adds.
TEST_P(GpuSparseBackward, SharesAreAddedInTheOrderOfTheQueries) {
  SparseShape shape = trained_shape();
  shape.batch = shape.group = 1;
  shape.max_queries = 60;
  shape.contiguous = true;
  for (const std::int64_t topk : {8, 130}) {
    shape.sources[0].topk = topk;
    GradientCase g(shape, 9);
    GuardedTensor& names = g.one.tensors[0]->indices;
    for (std::int64_t i = 0; i < names.size(); ++i) names.set(i, i % topk == 0 ? 0.0 : -1.0);
    Random random(2);
    for (std::int64_t i = 0; i < g.d_o.size(); ++i) {
      g.d_o.set(i, random.one_of({0x1p24, -0x1p24, 0x1p23, -0x1p23, 1.0, -1.0, 3.0}));
    }
    for (std::int64_t i = 0; i < g.one.q.size(); ++i) g.one.q.set(i, 0.0);  // so that the only key has all the weight
    for (std::int64_t i = 0; i < g.one.lse.size(); ++i) g.one.lse.set(i, 0.0);
    const Status status = differentiate(g);
    ASSERT_TRUE(status.ok()) << status.message();
    const std::int64_t queries = names.size() / topk;
    for (std::int64_t column = 0; column < shape.head_dim_v; ++column) {
      float sum = 0.0F;
      for (std::int64_t query = 0; query < queries; ++query) {
        sum += static_cast<float>(g.d_o.get(query * shape.head_dim_v + column));
      }
      EXPECT_EQ(g.dv[0].get(column), to_float(to_bfloat16(sum))) << "topk " << topk << ", column " << column;
    }
  }
}

/// Numbers out of range name nothing.
TEST_P(GpuSparseBackward, NumbersOutOfRangeNameNothing) {
  GradientCase one(trained_shape(), 7);
  GradientCase wrong(trained_shape(), 7);
  GuardedTensor& names = wrong.one.tensors[0]->indices;
  for (std::int64_t i = 0; i < names.size(); ++i) {
    if (names.get(i) == -1) names.set(i, i % 2 == 0 ? -2'000'000'000 : 2'000'000'000);
  }
  run(one, 7);
  const Status status = differentiate(wrong);
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<GuardedTensor*> expected = one.outputs();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(wrong.outputs()[i]->element_bytes(), expected[i]->element_bytes());
  }
}

TEST_P(GpuSparseBackward, WhatItLacksIsSaidAndNothingIsWritten) {
  const auto expect = [&](const SparseShape& shape, const char* message) {
    GradientCase g(shape, 5);
    const Status status = differentiate(g);
    EXPECT_EQ(status.code(), StatusCode::unsupported);
    EXPECT_EQ(status.message(), message);
    for (const GuardedTensor* output : g.outputs()) EXPECT_TRUE(output->untouched());
  };
  SparseShape shape = trained_shape();
  shape.sources[0].dtype = DType::float32;
  expect(shape, "sources[0].k is float32 and q is bfloat16: the gpu engine takes one dtype; the cpu engine takes both");
  shape.dtype = DType::float32;
  expect(shape,
         "q is float32: the gpu engine has gradients of sparse attention of float16 and bfloat16; the cpu engine has "
         "those of float32");
}

/// Of a process that checks them, a number out of range is an error; nothing is written, and the next call is right.
TEST_P(GpuSparseBackward, NumbersOutOfRangeAreErrorsWhereTheyAreChecked) {
  expect_passes_checked([&] {
    GradientCase g(trained_shape(), 7);
    GuardedTensor& names = g.one.tensors[0]->indices;
    const double name = names.get(0);
    names.set(0, 1000);
    const Status status = differentiate(g);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_TRUE(
        status.message().starts_with("sources[0].indices names 1000 at place 0 of query 0, head 0 of sequence "
                                     "0: it must be -1 or less than "))
        << status.message();
    for (const GuardedTensor* output : g.outputs()) EXPECT_TRUE(output->untouched());
    names.set(0, name);
    run(g, 7);
  });
}

}  // namespace
}  // namespace strobe::test
