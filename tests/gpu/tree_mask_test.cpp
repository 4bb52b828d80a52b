// SPDX-License-Identifier: Apache-2.0
// Tree masks on a GPU against the float64 reference, around the edges of blocks of keys and tiles of rows.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "attention/cache_copy.h"
#include "device_cache.h"
#include "device_case.h"
#include "gpu_test.h"
#include "tested_engine.h"

namespace strobe::test {
namespace {

class GpuTree : public FamilyTest {
 protected:
  void expect_matches(const AttentionCase& attention) {
    SCOPED_TRACE(describe(attention));
    const TestedVariants variants(true);
    DeviceCase one(attention, device());
    one.forward(stream());
    if (HasFailure()) return;
    one.expect_forward_right();
  }

  /// Trees and random bits, queries around the edges of tiles and keys around those of blocks.
  void expect_all_match(AttentionCase attention) {
    for (const std::int64_t queries : {1, 7, 33, 64}) {
      for (const std::int64_t keys : {queries, std::int64_t{129}, std::int64_t{1500}}) {
        attention.q.rows = queries;
        attention.k.rows = keys;
        attention.tree = {.random_bits = keys == 129, .visible = 0.1};
        attention.seed = static_cast<std::uint64_t>(queries);
        expect_matches(attention);
        if (HasFailure()) return;
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(, GpuTree, kFamilies, family_name);

AttentionCase tree_case(DType dtype, std::int64_t head_dim, std::int64_t heads_q) {
  AttentionCase attention = plain_case(0, head_dim, CausalMask::none);
  attention.dtype = dtype;
  attention.heads_q = heads_q;
  attention.has_d_lse = false;
  return attention;
}

TEST_P(GpuTree, Of64) { expect_all_match(tree_case(DType::float16, 64, 2)); }
TEST_P(GpuTree, OfGroupedHeads64) { expect_all_match(tree_case(DType::bfloat16, 64, 16)); }
TEST_P(GpuTree, Of128) { expect_all_match(tree_case(DType::bfloat16, 128, 2)); }
TEST_P(GpuTree, OfGroupedHeads128) { expect_all_match(tree_case(DType::float16, 128, 8)); }
TEST_P(GpuTree, Of256) { expect_all_match(tree_case(DType::bfloat16, 256, 4)); }

TEST_P(GpuTree, OfUsedLengths) {
  AttentionCase attention = tree_case(DType::bfloat16, 128, 8);
  attention.tree = TreeCase{.random_bits = true};
  attention.q.rows = 40;
  attention.k.rows = 700;
  attention.k.seqused = {700, 5};
  expect_matches(attention);
  attention.q.seqused = {0, 17};
  attention.has_sink = true;
  expect_matches(attention);
}

TEST_P(GpuTree, OfPackedQueries) {
  AttentionCase attention = tree_case(DType::float16, 64, 8);
  attention.tree = TreeCase{};
  attention.q = {.rows = 90, .cu_seqlens = {0, 61, 88}, .seqused = {}, .max_seqlen = 64};
  attention.k = {.rows = 1100, .cu_seqlens = {0, 100, 1090}, .seqused = {}};
  expect_matches(attention);
  attention.k.seqused = {33, 900};
  expect_matches(attention);
}

TEST_P(GpuTree, WithOtherOptions) {
  AttentionCase attention = tree_case(DType::bfloat16, 128, 4);
  attention.tree = TreeCase{.random_bits = true};
  attention.q.rows = 50;
  attention.k.rows = 333;
  const auto expect_with = [&](auto change) {
    AttentionCase changed = attention;
    change(changed);
    if (!HasFailure()) expect_matches(changed);
  };
  expect_with([](AttentionCase& c) { c.options.causal = CausalMask::bottom_right; });
  expect_with([](AttentionCase& c) { c.options.window = {100, 3}; });
  expect_with([](AttentionCase& c) { c.options.chunk = 60; });
  expect_with([](AttentionCase& c) { c.options.softcap = 10.0F; });
  expect_with([](AttentionCase& c) { c.options.scale = -0.1F; });
  expect_with([](AttentionCase& c) { c.options.dropout = 0.2F; });
  expect_with([](AttentionCase& c) { c.bias = BiasCase{.dtype = DType::float32, .wants_gradient = false}; });
  expect_with([](AttentionCase& c) {
    c.alibi = Alibi::per_head;
    c.has_sink = c.wants_max_logits = true;
    c.options.causal = CausalMask::top_left;
  });
}

// Rows that see one key each, one of which holds NaN and infinity: no other row meets it.
TEST_P(GpuTree, KeepsHiddenKeysOut) {
  for (const std::int64_t keys : {100, 2000}) {
    AttentionCase attention = tree_case(DType::bfloat16, 128, 8);
    attention.tree = TreeCase{};
    attention.q.rows = 24;
    attention.k.rows = keys;
    const std::int64_t poisoned = 9;
    DeviceCase one(attention, device());
    CaseTensors& tensors = one.tensors;
    for (std::int64_t i = 0; i < tensors.tree_mask.size(); ++i) {
      tensors.tree_mask.set_bits(i, std::uint64_t{1} << (i % attention.q.rows));
    }
    const std::int64_t row_elements = attention.heads_kv * attention.head_dim;
    for (std::int64_t b = 0; b < attention.batch; ++b) {
      const std::int64_t key = b * keys + keys - attention.q.rows + poisoned;
      for (std::int64_t at = key * row_elements; at < (key + 1) * row_elements; ++at) {
        tensors.k.set(at, kNaN);
        tensors.v.set(at, at % 2 == 0 ? kNaN : kInfinity);
      }
    }
    for (const GuardedTensor* input : {&tensors.tree_mask, &tensors.k, &tensors.v}) one.copies.upload(*input);
    one.forward(stream());
    one.copies.download(tensors.forward_outputs());
    for (std::int64_t at = 0; at < tensors.o.size() && !HasFailure(); ++at) {
      const std::int64_t query = at / (attention.heads_q * attention.head_dim) % attention.q.rows;
      EXPECT_EQ(std::isfinite(tensors.o.get(at)), query != poisoned) << query;
    }
  }
}

TEST_P(GpuTree, OfPages) {
  if (tested_family() != Family::sm90) GTEST_SKIP() << "the sm80 kernels have no caches";
  AttentionCase attention = tree_case(DType::bfloat16, 128, 8);
  attention.tree = TreeCase{};
  attention.q.rows = 24;
  attention.k.rows = 900;
  attention.k.seqused = {873, 30};
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    Random random(seed);
    const CaseTensors tensors(attention);
    const CacheCopy copy(tensors.forward_arguments(), CacheKind::pages, random);
    DeviceCache cache(copy.arguments(), device());
    cache.run(attention.options, stream());
    if (!HasFailure()) cache.expect_matches(copy.arguments(), attention.options);
  }
}

}  // namespace
}  // namespace strobe::test
