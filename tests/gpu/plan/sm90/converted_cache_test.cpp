// SPDX-License-Identifier: Apache-2.0
// Which forwards on K and V stored in 8 bits convert the cache first, and what kernels they are then planned for.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "gpu/auxiliary/convert_cache_variant.h"
#include "gpu/call/override.h"
#include "gpu/plan/converted_cache.h"
#include "gpu/plan/plan_problem.h"
#include "gpu/variant/architecture.h"
#include "sm90/cache_conversion.h"
#include "sm90/family.h"
#include "sm90/forward_variant.h"

namespace strobe::sm90 {
namespace {

/// A chunk of queries over a cache of 8k keys with four query heads a key head.
AttentionProblem chunk(std::int64_t queries) {
  AttentionProblem problem = test::problem_of(8192, 128, 128);
  problem.heads_q = 32;
  problem.seqlen_q = queries;
  problem.total_q = problem.batch * queries;
  problem.causal = CausalMask::bottom_right;
  problem.stored = {.dtype = DType::float8_e4m3, .k_rows = 8192, .v_rows = 8192};
  return problem;
}

template <class Change>
bool converts(const Change& change) {
  AttentionProblem problem = chunk(512);
  change(problem);
  return converts_cache(problem);
}

TEST(Sm90ConvertedCache, IsThatOfManyQueryRows) {
  EXPECT_TRUE(converts_cache(chunk(128)));
  EXPECT_FALSE(converts_cache(chunk(127)));
  EXPECT_TRUE(converts([](AttentionProblem& p) { p.page_size = 16, p.has_seqused_k = true; }));
  EXPECT_TRUE(converts([](AttentionProblem& p) { p.page_size = 1; }));
  EXPECT_TRUE(converts([](AttentionProblem& p) { p.has_cache_batch_idx = true; }));
  EXPECT_TRUE(converts([](AttentionProblem& p) { p.packed_q = true; }));
  EXPECT_TRUE(converts([](AttentionProblem& p) { p.stored.k_rows = p.stored.v_rows = 1; }));
  EXPECT_FALSE(converts([](AttentionProblem& p) { p.stored = {}; }));
  EXPECT_FALSE(converts([](AttentionProblem& p) { p.packed_k = true; }));
  EXPECT_FALSE(converts([](AttentionProblem& p) { p.has_leftpad_k = true; }));
  EXPECT_TRUE(converts([](AttentionProblem& p) { p.row_invariant = true; }));
  EXPECT_FALSE(converts([](AttentionProblem& p) { p.dtype = DType::float32; }));
  EXPECT_FALSE(converts([](AttentionProblem& p) { p.modifiers.block_size = 128; }));
  EXPECT_FALSE(converts([](AttentionProblem& p) { p.head_dim = 36; }));
}

// Whose kernels convert nothing.
TEST(Sm90ConvertedCache, IsEveryOneOfWideHeads) {
  const auto converts_wide = [](const auto& change) {
    return converts([&](AttentionProblem& p) {
      p.head_dim = p.head_dim_v = 512;
      change(p);
    });
  };
  EXPECT_TRUE(converts_wide([](AttentionProblem& p) { p.seqlen_q = 1, p.total_q = p.batch; }));
  EXPECT_TRUE(converts_wide([](AttentionProblem& p) { p.packed_k = true; }));
  EXPECT_TRUE(converts_wide([](AttentionProblem& p) { p.modifiers.block_size = 128; }));
  EXPECT_TRUE(converts_wide([](AttentionProblem& p) { p.row_invariant = true; }));
  EXPECT_FALSE(converts_wide([](AttentionProblem& p) { p.dtype = DType::float32; }));
}

/// Whose few query rows are not those of another kernel: pages that TMA does not bring are converted for them, too.
TEST(Sm90ConvertedCache, IsOneOfOddPagesInRowInvariantCalls) {
  const auto converts_decode = [](const auto& change) {
    return converts([&](AttentionProblem& p) {
      p.seqlen_q = 1, p.total_q = p.batch;
      p.row_invariant = true;
      change(p);
    });
  };
  EXPECT_FALSE(converts_decode([](AttentionProblem&) {}));
  EXPECT_FALSE(converts_decode([](AttentionProblem& p) { p.page_size = 16; }));
  EXPECT_TRUE(converts_decode([](AttentionProblem& p) { p.page_size = 12; }));
  EXPECT_TRUE(converts_decode([](AttentionProblem& p) { p.page_size = 16, p.has_leftpad_k = true; }));
  EXPECT_FALSE(converts_decode([](AttentionProblem& p) { p.page_size = 12, p.row_invariant = false; }));
}

TEST(Sm90ConvertedCache, PackedRowsStayPacked) {
  AttentionProblem problem = chunk(64);
  problem.head_dim = problem.head_dim_v = 512;
  problem.packed_k = true;
  problem.total_k = 12345;
  AttentionProblem converted = problem;
  converted.stored = {};
  EXPECT_EQ(gpu::with_converted_cache(problem), converted);
  EXPECT_EQ(gpu::converted_bytes(problem, 512).value(), 12345 * problem.heads_kv * 512 * 2);
}

TEST(Sm90ConvertedCache, RowsCountAsTheirKeysAreSeen) {
  EXPECT_TRUE(converts([](AttentionProblem& p) { p.window.left = 2047; }));
  EXPECT_FALSE(converts([](AttentionProblem& p) { p.window.left = 2046; }));
}

TEST(Sm90ConvertedCache, TakesAGibibyteAtMost) {
  const auto of_keys = [](std::int64_t keys) {
    return converts([=](AttentionProblem& p) {
      p.batch = 1;
      p.total_q = 2048;
      p.seqlen_k = keys;
    });
  };
  EXPECT_TRUE(of_keys(1 << 18));
  EXPECT_FALSE(of_keys((1 << 18) + 1));
}

TEST(Sm90ConvertedCache, IsPlannedAsContiguousKeysOf16Bits) {
  AttentionProblem problem = chunk(2048);
  problem.has_seqused_k = true;
  AttentionProblem wide = problem;
  wide.stored = {};
  problem.page_size = 16;
  problem.has_cache_batch_idx = true;
  problem.total_k = 0;
  EXPECT_EQ(gpu::with_converted_cache(problem), wide);
  gpu::PackList list;
  ASSERT_TRUE(family().list_kernels(problem, test::kH200, {}, list).ok());
  const auto kernels = list.take();
  ASSERT_EQ(kernels.size(), 2U);
  EXPECT_EQ(kernels[0].variant.expression, forward_variant(test::config_of(wide)).expression);
  EXPECT_EQ(kernels[1].variant.expression,
            gpu::convert_cache_variant({.stored = Element::e4m3}, gpu::kSm90a).expression);
}

TEST(Sm90ConvertedCache, PagesOfAnySizeStayWithThisFamily) {
  AttentionProblem problem = chunk(512);
  problem.page_size = 1;
  EXPECT_EQ(family().prefers_later(problem), "");
  const gpu::Override<forward::Config> test_of_these_kernels([](forward::Config&) {});
  EXPECT_EQ(family().prefers_later(problem), "keys in 8 bits are read row by row");
}

}  // namespace
}  // namespace strobe::sm90
