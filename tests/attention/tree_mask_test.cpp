// SPDX-License-Identifier: Apache-2.0
// Tree masks: the last keys of a sequence by the bits of its queries. Random trees and bits in any combination with
// other options are among the random configurations.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "case_tensors.h"
#include "every_dtype.h"
#include "matches_reference.h"
#include "misuse.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

AttentionCase tree_case(DType dtype, std::int64_t queries, std::int64_t keys) {
  AttentionCase attention{.dtype = dtype, .batch = 2, .heads_q = 4, .heads_kv = 2, .seed = 3};
  attention.q.rows = queries;
  attention.k.rows = keys;
  attention.tree = TreeCase{};
  attention.has_d_lse = false;
  return attention;
}

/// A number for each query, of every sequence alike.
void set_words(CaseTensors& tensors, const std::vector<std::uint64_t>& words) {
  const auto count = static_cast<std::int64_t>(words.size());
  for (std::int64_t i = 0; i < tensors.tree_mask.size(); ++i) {
    tensors.tree_mask.set_bits(i, words[static_cast<std::size_t>(i % count)]);
  }
}

class TreeMasks : public testing::TestWithParam<DType> {};

TEST_P(TreeMasks, MatchTheReference) {
  for (const std::int64_t queries : {1, 5, 33, 64}) {
    for (const std::int64_t keys : {1, 64, 300}) {
      for (const bool random_bits : {false, true}) {
        AttentionCase attention = tree_case(GetParam(), queries, keys);
        attention.tree->random_bits = random_bits;
        expect_case_matches_reference(attention);
        attention.has_sink = true;
        attention.tree->visible = 0.02;  // rows that see no key
        expect_case_matches_reference(attention);
      }
    }
  }
}

// A chain of drafts is a causal mask, to the bit; and under a causal mask a tree only takes keys away.
TEST_P(TreeMasks, OfAChainAreCausal) {
  for (const std::int64_t queries : {4, 33, 64}) {
    AttentionCase attention = tree_case(GetParam(), queries, 130);
    CaseTensors tensors(attention);
    std::vector<std::uint64_t> chain;
    for (std::int64_t i = 0; i < queries; ++i) chain.push_back(~std::uint64_t{0} >> (63 - i));
    set_words(tensors, chain);
    ForwardArguments arguments = tensors.forward_arguments();
    ASSERT_TRUE(forward(arguments).ok());
    const std::vector<std::byte> o = tensors.o.element_bytes();
    const std::vector<std::byte> lse = tensors.lse.element_bytes();
    for (const bool with_all_bits : {false, true}) {
      set_words(tensors, std::vector<std::uint64_t>(static_cast<std::size_t>(queries), ~std::uint64_t{0}));
      if (!with_all_bits) arguments.tree_mask = {};
      tensors.o.poison();
      ASSERT_TRUE(forward(arguments, {.causal = CausalMask::bottom_right}).ok());
      EXPECT_TRUE(tensors.o.element_bytes() == o);
      EXPECT_TRUE(tensors.lse.element_bytes() == lse);
      arguments = tensors.forward_arguments();
    }
  }
}

// What a hidden key and value hold reaches no row, infinities and NaN included, while other rows see them.
TEST_P(TreeMasks, KeepHiddenKeysOut) {
  for (const std::int64_t queries : {3, 12, 64}) {
    const AttentionCase attention = tree_case(GetParam(), queries, 100);
    CaseTensors tensors(attention);
    std::vector<std::uint64_t> alone;
    for (std::int64_t i = 0; i < queries; ++i) alone.push_back(std::uint64_t{1} << i);
    set_words(tensors, alone);
    const std::int64_t poisoned =
        queries - 2;  // the query whose own key and value hold NaN, of every sequence and head
    const std::int64_t row_elements = attention.heads_kv * attention.head_dim;
    for (std::int64_t b = 0; b < attention.batch; ++b) {
      const std::int64_t key = b * attention.k.rows + attention.k.rows - queries + poisoned;
      for (std::int64_t at = key * row_elements; at < (key + 1) * row_elements; ++at) {
        tensors.k.set(at, kNaN);
        tensors.v.set(at, at % 2 == 0 ? kNaN : kInfinity);
      }
    }
    ASSERT_TRUE(forward(tensors.forward_arguments()).ok());
    for (std::int64_t at = 0; at < tensors.o.size(); ++at) {
      const std::int64_t query = at / (attention.heads_q * attention.head_dim_v) % queries;
      EXPECT_EQ(std::isfinite(tensors.o.get(at)), query != poisoned) << query;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, TreeMasks, testing::Values(DType::float32, DType::float16, DType::bfloat16), dtype_name);

// Sequences of a batch have the bits of calls of their own.
TEST(TreeMask, GivesASequenceTheSameBitsAlone) {
  for (const std::int64_t queries : {2, 24}) {
    AttentionCase attention = tree_case(DType::float32, queries, 90);
    CaseTensors tensors(attention);
    const AttentionOptions options{.row_invariant = true};
    ForwardArguments whole = tensors.forward_arguments();
    ASSERT_TRUE(forward(whole, options).ok());
    const std::vector<std::byte> expected = tensors.o.element_bytes();
    tensors.o.poison();
    const auto part = [&](auto view, std::int64_t b) {
      using Byte = std::conditional_t<std::is_same_v<decltype(view.data), void*>, std::byte, const std::byte>;
      view.data = static_cast<Byte*>(view.data) + b * view.strides[0] * static_cast<std::int64_t>(size_of(view.dtype));
      view.shape[0] = 1;
      return view;
    };
    for (std::int64_t b = 0; b < attention.batch; ++b) {
      ForwardArguments one = whole;
      one.q = part(whole.q, b);
      one.k = part(whole.k, b);
      one.v = part(whole.v, b);
      one.o = part(whole.o, b);
      one.lse = part(whole.lse, b);
      one.tree_mask = part(whole.tree_mask, b);
      ASSERT_TRUE(forward(one, options).ok());
    }
    EXPECT_TRUE(tensors.o.element_bytes() == expected);
  }
}

// Stored keys: a call has the bits of one on converted keys.
TEST(TreeMask, TakesKeysStoredInEightBits) {
  AttentionCase attention = tree_case(DType::float32, 7, 60);
  CaseTensors tensors(attention);
  for (GuardedTensor* keys : {&tensors.k, &tensors.v}) {
    for (std::int64_t i = 0; i < keys->size(); ++i) keys->set(i, static_cast<double>(i * 37 % 255 - 127));
  }
  ForwardArguments arguments = tensors.forward_arguments();
  const AttentionOptions options{.scale = 0.001F};
  ASSERT_TRUE(forward(arguments, options).ok());
  const std::vector<std::byte> expected = tensors.o.element_bytes();
  const auto stored = [](const GuardedTensor& from) {
    std::vector<std::int8_t> bytes;
    for (std::int64_t i = 0; i < from.size(); ++i) bytes.push_back(static_cast<std::int8_t>(from.get(i)));
    return bytes;
  };
  const std::vector<std::int8_t> k = stored(tensors.k), v = stored(tensors.v);
  const float one = 1.0F;
  arguments.k = tensor(k.data(), {attention.batch, attention.k.rows, attention.heads_kv, attention.head_dim});
  arguments.v = tensor(v.data(), {attention.batch, attention.k.rows, attention.heads_kv, attention.head_dim_v});
  arguments.k_descale = arguments.v_descale = tensor(&one, {1, 1, 1});
  tensors.o.poison();
  ASSERT_TRUE(forward(arguments, options).ok());
  EXPECT_TRUE(tensors.o.element_bytes() == expected);
}

TEST(TreeMask, IsExplained) {
  const CaseTensors tensors(tree_case(DType::float32, 7, 60));
  const Result<Plan> plan = make_plan(tensors.forward_arguments());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_NE(plan->explain().find("tree mask     a bit for each of a sequence's last keys"), std::string::npos);
}

const std::int64_t kWords[130] = {};

AttentionCase wide_case() {
  AttentionCase attention = valid_case();
  attention.q.rows = 65;
  return attention;
}

TEST(Misuse, OfTreeMasks) {
  const ConstTensorView mask = tensor(kWords, {2, 3});
  for (const ForwardMisuse& misuse : std::vector<ForwardMisuse>{
           {"Rank", [](ForwardCall& c) { c.arguments.tree_mask = tensor(kWords, {6}); }, kInvalid,
            "tree_mask has rank 1: it must have rank 2 [batch, seqlen_q]"},
           {"Shape", [](ForwardCall& c) { c.arguments.tree_mask = tensor(kWords, {2, 4}); }, kInvalid,
            "tree_mask has shape [2, 4]: it must be [2, 3] [batch, seqlen_q]"},
           {"DType", [&](ForwardCall& c) { (c.arguments.tree_mask = mask).dtype = DType::int32; }, kInvalid,
            "tree_mask is int32: it must be int64"},
           {"Device", [&](ForwardCall& c) { (c.arguments.tree_mask = mask).device = {DeviceType::cuda, 0}; }, kInvalid,
            "tree_mask is on cuda:0 and q on cpu: all tensors must be on one device"},
           {"Null", [&](ForwardCall& c) { (c.arguments.tree_mask = mask).data = nullptr; }, kInvalid,
            "tree_mask has shape [2, 3] and a null pointer"},
           {"BlockMask",
            [&](ForwardCall& c) {
              static const std::uint8_t blocks[1] = {1};
              c.arguments.tree_mask = mask;
              c.arguments.modifiers.block_mask = tensor(blocks, {1, 1, 1, 1});
            },
            kUnsupported, "tree_mask is given with block_mask: no engine combines the two"}}) {
    expect_rejected(valid_case(), misuse);
  }
  expect_rejected(
      wide_case(),
      ForwardMisuse{"Queries", [](ForwardCall& c) { c.arguments.tree_mask = tensor(kWords, {2, 65}); }, kInvalid,
                    "tree_mask is given with seqlen_q of 65: it has a bit for each of at most "
                    "64 queries"});
}

}  // namespace
}  // namespace strobe::test
