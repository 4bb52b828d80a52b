// SPDX-License-Identifier: Apache-2.0
// Few queries on the CPU engine: chunks of keys, each with every query, under every option and at every edge.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "matches_reference.h"
#include "run_on_threads.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

constexpr const char* kPath = "few queries";

AttentionCase decoding(DType dtype, std::int64_t heads_q, std::int64_t heads_kv, std::int64_t queries,
                       std::int64_t keys) {
  AttentionCase attention{.dtype = dtype, .heads_q = heads_q, .heads_kv = heads_kv, .head_dim = 64, .head_dim_v = 64};
  attention.q.rows = queries;
  attention.k.rows = keys;
  attention.seed = static_cast<std::uint64_t>(queries * 1000 + keys);
  return attention;
}

std::string explained(const AttentionCase& attention, int threads = 1) {
  const CaseTensors tensors(attention);
  const Result<Plan> plan = make_plan(tensors.forward_arguments(), attention.options, {.threads = threads});
  EXPECT_TRUE(plan.ok());
  return plan.ok() ? plan->explain() : "";
}

bool takes_the_path(const AttentionCase& attention) { return explained(attention).find(kPath) != std::string::npos; }

/// The most rows of the path: fewer beside units of bfloat16, of which the plan of a longer call tells.
std::int64_t most_rows(DType dtype) {
  const CaseTensors tensors(decoding(dtype, 1, 1, 64, 64));
  const Result<Plan> plan = make_plan(tensors.forward_arguments(), {});
  EXPECT_TRUE(plan.ok());
  return plan.ok() && plan->probability_dtype() == DType::bfloat16 ? 16 : 32;
}

void expect_path_matches_reference(const AttentionCase& attention) {
  EXPECT_TRUE(takes_the_path(attention)) << describe(attention);
  expect_case_matches_reference(attention, {.threads = 2});
}

class FewQueries : public testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(DTypes, FewQueries, testing::Values(DType::float32, DType::float16, DType::bfloat16),
                         [](const testing::TestParamInfo<DType>& dtype) { return std::string(name_of(dtype.param)); });

// Rows that share registers come in ones, twos, fours, eights and whole vectors, and what is left of each.
TEST_P(FewQueries, EveryNumberOfRows) {
  const std::int64_t most = most_rows(GetParam());
  for (std::int64_t rows = 1; rows <= most; ++rows) {
    for (const std::int64_t keys : {20, 80}) expect_path_matches_reference(decoding(GetParam(), 1, 1, rows, keys));
  }
  EXPECT_FALSE(takes_the_path(decoding(GetParam(), 1, 1, most + 1, 20)));
  expect_path_matches_reference(decoding(GetParam(), 4, 1, most / 4, 70));
}

// Chunks hold 256 keys, blocks 64, steps 16.
TEST_P(FewQueries, EveryEdgeOfBlocksAndChunks) {
  for (const std::int64_t edge : {16, 64, 256, 512}) {
    for (std::int64_t keys = edge - 1; keys <= edge + 1; ++keys) {
      AttentionCase attention = decoding(GetParam(), 2, 2, 3, keys);
      attention.options.causal = CausalMask::bottom_right;
      expect_path_matches_reference(attention);
    }
  }
}

// Columns in whole vectors are read in place, others are widened; heads of one task, and those of the next.
TEST_P(FewQueries, HeadDimsAndHeads) {
  for (const std::int64_t head_dim : {1, 15, 16, 40, 80, 128, 512}) {
    AttentionCase attention = decoding(GetParam(), 2, 1, 2, 270);
    attention.head_dim = head_dim;
    attention.head_dim_v = 144 - head_dim % 144;
    expect_path_matches_reference(attention);
  }
  for (const std::int64_t heads : {3, 17, 40})
    expect_path_matches_reference(decoding(GetParam(), heads, heads, 1, 270));
}

std::vector<AttentionCase> masked(DType dtype) {
  const std::int64_t heads_kv = most_rows(dtype) == 16 ? 3 : 2;  // 12 rows a group of heads, or 18
  std::vector<AttentionCase> cases(7, decoding(dtype, 6, heads_kv, 6, 300));
  cases[0].options = {.causal = CausalMask::top_left};
  cases[1].options.window = {40, 20};
  cases[2].options = {.causal = CausalMask::bottom_right, .window = {140, -1}, .softcap = 5.0F};
  cases[3].options.chunk = 149;
  cases[4].blocks = {.size = 64, .sharing = {.per_head = true}};
  cases[5].blocks = {.size = 64};
  cases[5].options.causal = CausalMask::bottom_right;
  cases[6].batch = 4;
  cases[6].q = {.rows = 14, .cu_seqlens = {0, 3, 3, 9, 10}, .max_seqlen = 6};
  cases[6].k = {.rows = 700, .cu_seqlens = {0, 300, 310, 310, 690}, .seqused = {257, 10, 0, 380}, .max_seqlen = 400};
  return cases;
}

TEST_P(FewQueries, Masks) {
  for (const AttentionCase& attention : masked(GetParam())) expect_path_matches_reference(attention);
}

TEST_P(FewQueries, ModifiersAndDropout) {
  for (AttentionCase attention : masked(GetParam())) {
    const bool packed = !attention.q.cu_seqlens.empty();
    attention.alibi = Alibi::per_head;
    if (!packed) attention.bias = {.dtype = GetParam(), .sharing = {.per_head = true}, .hidden = 0.3};
    attention.options.dropout = 0.3F;
    attention.has_sink = true;
    attention.wants_max_logits = true;
    expect_path_matches_reference(attention);
  }
}

TEST_P(FewQueries, ScalesOfEitherSign) {
  for (const float scale : {-0.25F, 0.0F}) {
    for (const std::int64_t rows : {2, 16}) {
      AttentionCase attention = decoding(GetParam(), 1, 1, rows, 330);
      attention.options.scale = scale;
      expect_path_matches_reference(attention);
    }
  }
}

// What no query sees is NaN: all keys past the causal edge of every row, and those that another row alone sees.
TEST_P(FewQueries, HiddenNaNReachesNothing) {
  for (const AttentionCase& attention : masked(GetParam())) {
    for (const std::int64_t key : {0, 5, 150, 298}) {
      CaseTensors tensors(attention);
      tensors.k.set(key * attention.heads_kv * 64, kNaN);
      tensors.v.set(key * attention.heads_kv * 64 + 3, kNaN);
      expect_tensors_match_reference(tensors, attention, {.threads = 2});
    }
  }
}

// Keys in whole steps are used where they lie, unless a row does not see the last of them.
TEST_P(FewQueries, HiddenNaNAtTheEndOfAStepReachesNothing) {
  for (const std::int64_t rows : {2, 4, 8}) {
    AttentionCase attention = decoding(GetParam(), 2, 2, rows, 128);
    attention.options.causal = CausalMask::bottom_right;
    CaseTensors tensors(attention);
    const std::int64_t last = 127 * attention.heads_kv * 64;
    tensors.v.set(last + 3, kNaN);
    expect_tensors_match_reference(tensors, attention, {.threads = 2});
  }
}

// One chunk's sums alone are NaN or infinite; the merge with the others keeps them.
TEST_P(FewQueries, VisibleSpecialValuesSurviveTheMerge) {
  for (const std::int64_t rows : {1, 16}) {
    const AttentionCase attention = decoding(GetParam(), 2, 2, rows, 400);
    for (const double value : {kNaN, kInfinity, -kInfinity}) {
      CaseTensors keys(attention);
      keys.k.set(200 * 2 * 64, value);
      expect_tensors_match_reference(keys, attention, {.threads = 2});
      CaseTensors values(attention);
      values.v.set(200 * 2 * 64, value);
      expect_tensors_match_reference(values, attention, {.threads = 2});
    }
  }
}

TEST_P(FewQueries, SameBitsFromEveryThreadCountAndPool) {
  const ParallelFor parallel_for = run_on_threads;
  for (const AttentionCase& attention : masked(GetParam())) {
    CaseTensors tensors(attention);
    const auto run = [&](const Execution& execution) {
      tensors.o.poison();
      EXPECT_TRUE(forward(tensors.forward_arguments(), attention.options, execution).ok());
      return tensors.o.element_bytes();
    };
    const auto expected = run({.threads = 1});
    for (const int threads : {2, 3, 7}) {
      EXPECT_EQ(run({.threads = threads}), expected) << threads;
      EXPECT_EQ(run({.threads = threads, .parallel_for = &parallel_for}), expected) << threads;
    }
  }
}

TEST(FewQueriesPlan, TakesForwardsOfFewRows) {
  EXPECT_TRUE(takes_the_path(decoding(DType::float32, 8, 8, 1, 40)));
  EXPECT_TRUE(takes_the_path(decoding(DType::float32, 32, 8, 8, 40)));
  EXPECT_FALSE(takes_the_path(decoding(DType::float32, 32, 8, 9, 40)));
  EXPECT_FALSE(takes_the_path(decoding(DType::float32, 1, 1, 33, 40)));
  const CaseTensors tensors(decoding(DType::float32, 1, 1, 1, 64));
  const Result<Plan> backward = make_plan(tensors.backward_arguments());
  ASSERT_TRUE(backward.ok());
  EXPECT_EQ(backward->explain().find(kPath), std::string::npos);
}

TEST(FewQueriesPlan, CutsKeysAlikeInEveryCall) {
  const auto chunks = [](const std::string& text) {
    const std::size_t begin = text.find("tasks ");
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  const AttentionCase attention = decoding(DType::float32, 1, 1, 1, 16384);
  const std::string one = chunks(explained(attention, 1));
  EXPECT_NE(one.find("chunks of 256 keys"), std::string::npos) << one;
  for (const int threads : {2, 16, 100}) EXPECT_EQ(chunks(explained(attention, threads)), one);
  EXPECT_NE(explained(decoding(DType::float32, 1, 1, 1, 512)).find("chunks of 256 keys"), std::string::npos);
}

}  // namespace
}  // namespace strobe::test
