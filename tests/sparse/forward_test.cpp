// SPDX-License-Identifier: Apache-2.0
// strobe::sparse_forward on the CPU against float64 with the bound of every element, and what it promises besides.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <string>
#include <vector>

#include "attention/seeds.h"
#include "reference/sparse.h"
#include "sparse_case.h"

namespace strobe::test {
namespace {

void expect_within(const ConstTensorView& actual, const reference::BoundedTensor& expected) {
  const reference::WorstElement worst = reference::worst_element(actual, expected);
  EXPECT_LE(worst.ratio, 1.0) << reference::describe(worst, actual);
}

TEST(SparseForward, RandomConfigurationsKeepToTheBound) {
  for (const std::uint64_t seed : chosen_seeds(400)) {
    SparseCase one(random_shape(seed), seed);
    SCOPED_TRACE("STROBE_SEED=" + std::to_string(seed) + ": " + describe(one.shape));
    const Status status = sparse_forward(one.arguments(), one.shape.options);
    ASSERT_TRUE(status.ok()) << status.message();
    const reference::SparseForwardResult expected = reference::sparse_forward(one.arguments(), one.shape.options);
    expect_within(one.o.view(), expected.o);
    if (one.shape.lse) expect_within(one.lse.view(), expected.lse);
    EXPECT_TRUE(one.o.guards_intact());
    EXPECT_TRUE(one.lse.guards_intact());
    EXPECT_TRUE(one.shape.lse || one.lse.untouched());
    if (testing::Test::HasFailure()) return;
  }
}

TEST(SparseForward, ThreadsAndRepetitionsChangeNoBit) {
  for (const std::uint64_t seed : chosen_seeds(60)) {
    SparseCase one(random_shape(seed), seed);
    SCOPED_TRACE("STROBE_SEED=" + std::to_string(seed) + ": " + describe(one.shape));
    ASSERT_TRUE(sparse_forward(one.arguments(), one.shape.options, {.threads = 1}).ok());
    const std::vector<std::byte> o = one.o.element_bytes();
    const std::vector<std::byte> lse = one.lse.element_bytes();
    for (const int threads : {3, 8}) {
      one.o.poison();
      one.lse.poison();
      ASSERT_TRUE(sparse_forward(one.arguments(), one.shape.options, {.threads = threads}).ok());
      EXPECT_EQ(one.o.element_bytes(), o);
      EXPECT_EQ(one.lse.element_bytes(), lse);
    }
  }
}

/// On each instruction set that this machine and the build have.
TEST(SparseForward, EveryInstructionSetKeepsToTheBound) {
  std::int64_t all = hwy::SupportedTargets();
  for (; all != 0; all &= all - 1) {
    hwy::SetSupportedTargetsForTest(all & -all);
    hwy::GetChosenTarget().DeInit();
    for (const std::uint64_t seed : chosen_seeds(40)) {
      SparseCase one(random_shape(seed), seed);
      SCOPED_TRACE(std::string(hwy::TargetName(all & -all)) + ", STROBE_SEED=" + std::to_string(seed));
      EXPECT_TRUE(sparse_forward(one.arguments(), one.shape.options).ok());
      const reference::SparseForwardResult expected = reference::sparse_forward(one.arguments(), one.shape.options);
      expect_within(one.o.view(), expected.o);
      if (one.shape.lse) expect_within(one.lse.view(), expected.lse);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

/// Decode of one query with 128 heads over many keys, which are split among tasks.
TEST(SparseForward, LongListsOfFewQueriesKeepToTheBound) {
  SparseShape shape;
  shape.batch = 1;
  shape.max_queries = 1;
  shape.group = 128;
  shape.head_dim = 576;
  shape.head_dim_v = 512;
  shape.dtype = DType::bfloat16;
  shape.sources = {SourceShape{.layout = KeyLayout::pages,
                               .k_format = deepseek_v32_rows(),
                               .v_apart = false,
                               .topk = 2048,
                               .page_size = 64,
                               .max_keys = 3000}};
  SparseCase one(shape, 7);
  ASSERT_TRUE(sparse_forward(one.arguments()).ok());
  const reference::SparseForwardResult expected = reference::sparse_forward(one.arguments());
  expect_within(one.o.view(), expected.o);
  expect_within(one.lse.view(), expected.lse);
}

/// Every key listed once, in order: strobe::forward within the sum of both bounds.
TEST(SparseForward, AllKeysAreOrdinaryAttention) {
  for (const std::int64_t block_size : {1, 16, 64}) {
    for (const bool causal : {false, true}) {
      SparseShape shape;
      shape.max_queries = 9;
      shape.heads_kv = 2;
      shape.head_dim = 64;
      shape.head_dim_v = 48;
      const std::int64_t keys = 75;
      shape.sources = {SourceShape{
          .block_size = block_size, .topk = (keys + block_size - 1) / block_size, .max_keys = keys, .causal = causal}};
      SparseCase one(shape, 3);
      GuardedTensor& indices = one.tensors[0]->indices;
      for (std::int64_t i = 0; i < indices.size(); ++i) indices.set(i, static_cast<double>(i % shape.sources[0].topk));
      Random random(4);
      for (std::int64_t i = 0; i < one.tensors[0]->k->size(); ++i) one.tensors[0]->k->set(i, random.normal());
      for (std::int64_t i = 0; i < one.tensors[0]->v->size(); ++i) one.tensors[0]->v->set(i, random.normal());
      ASSERT_TRUE(sparse_forward(one.arguments()).ok());
      ForwardArguments dense;
      dense.q = one.arguments().q;
      dense.k = one.arguments().sources[0].k;
      dense.v = one.arguments().sources[0].v;
      std::vector<float> o(static_cast<std::size_t>(one.o.size()));
      std::vector<float> lse(static_cast<std::size_t>(one.lse.size()));
      dense.o = tensor(o.data(), {2, 9, 8, 48});
      dense.lse = tensor(lse.data(), {2, 8, 9});
      AttentionOptions options;
      if (causal) options.causal = CausalMask::bottom_right;
      ASSERT_TRUE(forward(dense, options).ok());
      const reference::ForwardResult expected = reference::forward(dense, options);
      for (std::int64_t i = 0; i < one.o.size(); ++i) {
        EXPECT_NEAR(one.o.get(i), o[static_cast<std::size_t>(i)], 2.0 * expected.o.bound[static_cast<std::size_t>(i)]);
      }
      for (std::int64_t i = 0; i < one.lse.size(); ++i) {
        EXPECT_NEAR(one.lse.get(i), lse[static_cast<std::size_t>(i)],
                    2.0 * expected.lse.bound[static_cast<std::size_t>(i)]);
      }
    }
  }
}

/// One key of value 1 and one of value 4, with equal scores.
TEST(SparseForward, AKeyThatIsNamedTwiceCountsTwice) {
  float q[1] = {1.0F};
  float k[2] = {0.0F, 0.0F};
  float v[2] = {1.0F, 4.0F};
  float o[1];
  float lse[1];
  std::int32_t indices[3] = {0, 1, 1};
  SparseForwardArguments a;
  a.q = tensor(q, {1, 1, 1, 1});
  a.o = tensor(o, {1, 1, 1, 1});
  a.lse = tensor(lse, {1, 1, 1});
  a.sources[0].k = tensor(k, {1, 2, 1, 1});
  a.sources[0].v = tensor(v, {1, 2, 1, 1});
  a.sources[0].indices = tensor(indices, {1, 1, 1, 3});
  ASSERT_TRUE(sparse_forward(a).ok());
  EXPECT_FLOAT_EQ(o[0], 3.0F);
  EXPECT_FLOAT_EQ(lse[0], std::log(3.0F));
}

/// Without memory: of a decode whose list is split, over rows in a format.
TEST(SparseForward, IsExplainedWithoutBeingRun) {
  const auto uint8 = [](std::initializer_list<std::int64_t> shape) {
    ConstTensorView view = tensor(static_cast<const float*>(nullptr), shape);
    view.dtype = DType::uint8;
    return view;
  };
  SparseForwardArguments a;
  a.q = tensor(static_cast<const float*>(nullptr), {1, 1, 16, 576});
  a.o = tensor(static_cast<float*>(nullptr), {1, 1, 16, 512});
  a.sources[0].k = uint8({40, 64, 1, 656});
  a.sources[0].k_format = deepseek_v32_rows();
  a.sources[0].in_pool = true;
  a.sources[0].indices = tensor(static_cast<const std::int32_t*>(nullptr), {1, 1, 1, 2048});
  const Result<std::string> text = explain_sparse_forward(a);
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_EQ(text->find("engine        cpu: the tensors are in host memory\ninstructions  "), 0U) << *text;
  EXPECT_NE(text->find("tasks         1 queries by 1 key heads, their lists in 8 parts of 256 keys\n"
                       "source 0      rows of 656 bytes, converted to float32 as they are read\n"),
            std::string::npos)
      << *text;
  a.sources[0].indices.dtype = DType::float32;
  EXPECT_EQ(explain_sparse_forward(a).status().message(), sparse_forward(a).message());
  EXPECT_EQ(explain_sparse_forward(a).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace strobe::test
