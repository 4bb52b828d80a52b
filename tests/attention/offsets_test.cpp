// SPDX-License-Identifier: Apache-2.0
// Calls on parts of sequences: what offsets mean, parts that make a whole, dropout by positions, misuse. The random
// configurations compare calls with offsets with the float64 reference.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "every_dtype.h"
#include "flat_scores.h"
#include "matches_reference.h"
#include "misuse.h"
#include "parts.h"
#include "random_case.h"
#include "reference/bound/arithmetic.h"
#include "seeds.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

PartRunner on_the_cpu(const AttentionCase& attention) {
  const CaseTensors tensors(attention);
  const Result<Plan> first = make_plan(tensors.forward_arguments(), attention.options);
  const Result<Plan> second = make_plan(tensors.backward_arguments(), attention.options);
  EXPECT_TRUE(first.ok() && second.ok()) << first.status().message() << second.status().message();
  return {.forward =
              [](CaseTensors& of, const AttentionCase& part) {
                const Status status = forward(of.forward_arguments(), part.options);
                ASSERT_TRUE(status.ok()) << status.message();
              },
          .backward =
              [](CaseTensors& of, const AttentionCase& part) {
                const Status status = backward(of.backward_arguments(), part.options);
                ASSERT_TRUE(status.ok()) << status.message();
              },
          .forward_model = reference::arithmetic_of(*first),
          .backward_model = reference::arithmetic_of(*second)};
}

TEST(Offsets, PartsMakeTheWhole) {
  for (const std::uint64_t seed : chosen_seeds(120)) {
    Random random(seed);
    const AttentionCase attention =
        as_parts(random_case(seed, {.tree_mask = false, .text = false, .normalize = false}), random);
    expect_parts_make_the_whole(attention, random, on_the_cpu(attention));
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

using OffsetsOf = EveryDType;

INSTANTIATE_TEST_SUITE_P(DTypes, OffsetsOf, every_dtype(), dtype_name);

AttentionCase part_case(DType dtype) {
  AttentionCase attention = square(150, 64);
  attention.dtype = dtype;
  attention.heads_q = 2 * attention.heads_kv;
  attention.alibi = Alibi::per_head;
  attention.options = {.causal = CausalMask::bottom_right, .window = {70, -1}};
  attention.k.rows = 180;
  return attention;
}

/// The bits of both passes.
std::vector<std::vector<std::byte>> results_of(const AttentionCase& attention) {
  CaseTensors tensors(attention);
  EXPECT_TRUE(forward(tensors.forward_arguments(), attention.options).ok());
  EXPECT_TRUE(backward(tensors.backward_arguments(), attention.options).ok());
  std::vector<std::vector<std::byte>> bits;
  for (const GuardedTensor* tensor : {&tensors.o, &tensors.lse, &tensors.dq, &tensors.dk, &tensors.dv}) {
    bits.push_back(tensor->element_bytes());
  }
  return bits;
}

TEST_P(OffsetsOf, WholeSequencesHaveTheBitsOfACallWithout) {
  AttentionCase aligned = part_case(GetParam());
  AttentionCase at_offset = aligned;
  at_offset.q.offsets = {1030, 30};  // 180 keys, 150 queries
  at_offset.k.offsets = {1000, 0};
  EXPECT_TRUE(results_of(at_offset) == results_of(aligned));
  at_offset.options.causal = CausalMask::top_left;
  EXPECT_TRUE(results_of(at_offset) == results_of(aligned)) << "positions say all";
  aligned.options.causal = CausalMask::top_left;
  at_offset.q.offsets = at_offset.k.offsets = {77, 0};
  EXPECT_TRUE(results_of(at_offset) == results_of(aligned));
}

TEST_P(OffsetsOf, OneThatIsMissingCountsAsZeros) {
  AttentionCase attention = part_case(GetParam());
  attention.q.offsets = {40, 3};
  const auto without = results_of(attention);
  attention.k.offsets = {0, 0};
  EXPECT_TRUE(results_of(attention) == without);
  attention.q.offsets = {0, 0};
  attention.k.offsets = {100, 7};
  const auto with_zeros = results_of(attention);
  attention.q.offsets = {};
  EXPECT_TRUE(results_of(attention) == with_zeros);
}

TEST_P(OffsetsOf, QueriesThatSeeNoKeyAndPositionsNearTheLast) {
  for (const std::int32_t first_query : {0, 150, 1073741000}) {
    for (const std::int32_t first_key : {151, 1073741000}) {
      AttentionCase attention = part_case(GetParam());
      attention.q.offsets = {first_query, first_query};
      attention.k.offsets = {first_key, 0};
      expect_case_matches_reference(attention);
      attention.options.window = {};
      attention.alibi = Alibi::none;
      expect_case_matches_reference(attention);
    }
  }
}

TEST_P(OffsetsOf, ChunksAreThoseOfWholeSequences) {
  for (const std::int64_t chunk : {1, 50, 64, 1000}) {
    AttentionCase attention = part_case(GetParam());
    attention.options = {.causal = CausalMask::bottom_right, .chunk = chunk};
    attention.q.offsets = {133, 1073741000};
    attention.k.offsets = {101, 1073740990};
    expect_case_matches_reference(attention);
  }
}

void expect_part_drops_the_same(const FlatScores& all, const AttentionCase& whole, std::int32_t first_query,
                                std::int32_t first_key, std::int64_t queries) {
  constexpr std::int64_t kKeys = 45;
  AttentionCase part = whole;
  part.q.rows = queries;
  part.k.rows = part.head_dim_v = kKeys;
  part.q.offsets = {first_query, first_query};
  part.k.offsets = {first_key, first_key};
  FlatScores some(part);
  some.run_forward();
  for (std::int64_t index = 0; index < whole.batch * whole.heads_q * queries * kKeys; ++index) {
    const std::int64_t j = index % kKeys;
    const std::int64_t i = index / kKeys % queries;
    const std::int64_t head = index / kKeys / queries % whole.heads_q;
    const std::int64_t entry = index / kKeys / queries / whole.heads_q;
    const bool kept = all.probability(first_query + i, first_key + j, head, entry) > 0.0;
    ASSERT_EQ(some.probability(i, j, head, entry) > 0.0, kept)
        << "query " << i << " of " << queries << ", key " << j << " from " << first_query << ", " << first_key;
  }
}

TEST(OffsetsAndDropout, PartsDropWhatTheWholeDrops) {
  constexpr std::int64_t kRows = 90;
  for (const std::int64_t head_dim : {16, 96}) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      AttentionCase whole = flat_case(kRows, kRows, 2, 3);
      whole.dtype = dtype;
      whole.head_dim = head_dim;
      whole.options.dropout = 0.4F;
      whole.random = {.seed = 7, .offset = 11};
      FlatScores all(whole);
      all.run_forward();
      for (const auto& [first_query, first_key] : {std::pair{0, 0}, {16, 32}, {7, 33}, {1, 31}, {40, 5}}) {
        expect_part_drops_the_same(all, whole, first_query, first_key, 45);
        expect_part_drops_the_same(all, whole, first_query, first_key, 2);
      }
      if (HasFailure()) FAIL() << name_of(dtype) << ", head_dim " << head_dim;
    }
  }
}

template <class Arguments>
std::vector<Misuse<Arguments>> offset_misuses() {
  using C = Call<Arguments>;
  return {
      {"OfAnotherBatch", [](C& c) { c.arguments.sequences.offset_q = lengths_of({1, 1, 1}); }, kInvalid,
       "offset_q has shape [3]: it must be [2] [batch]"},
      {"Negative", [](C& c) { c.arguments.sequences.offset_k = lengths_of({1, -1}); }, kInvalid,
       "offset_k[1] is -1: it must be 0 or more"},
      {"BeyondPositions", [](C& c) { c.arguments.sequences.offset_q = lengths_of({0, 1073741823}); }, kInvalid,
       "offset_q[1] is 1073741823 and sequence 1 has 3 queries: positions must be below 2^30"},
      {"BeyondPositionsOfKeys", [](C& c) { c.arguments.sequences.offset_k = lengths_of({1073741821, 0}); }, kInvalid,
       "offset_k[0] is 1073741821 and sequence 0 has 5 keys: positions must be below 2^30"},
      {"OfFloats",
       [](C& c) {
         c.arguments.sequences.offset_q = lengths_of({1, 1});
         c.arguments.sequences.offset_q.dtype = DType::float32;
       },
       kInvalid, "offset_q is float32: it must be int32"},
      {"WithLogLength",
       [](C& c) {
         c.arguments.sequences.offset_k = lengths_of({1, 1});
         c.options.log_length = 64;
       },
       kInvalid, "offset_k is given with log_length: how many keys a whole sequence has is not known of a part of it"},
  };
}

TEST(Misuse, OfOffsetsInTheForward) {
  for (const ForwardMisuse& misuse : offset_misuses<ForwardArguments>()) expect_rejected(valid_case(), misuse);
}

TEST(Misuse, OfOffsetsBesideATree) {
  AttentionCase attention = valid_case();
  attention.tree = TreeCase();
  expect_rejected<ForwardArguments>(
      attention, {"Tree", [](ForwardCall& c) { c.arguments.sequences.offset_q = lengths_of({1, 1}); }, kInvalid,
                  "tree_mask is given with offset_q or offset_k: it names the last keys of whole sequences"});
}

TEST(Misuse, OfOffsetsInTheBackward) {
  for (const BackwardMisuse& misuse : offset_misuses<BackwardArguments>()) expect_rejected(valid_case(), misuse);
}

}  // namespace
}  // namespace strobe::test
