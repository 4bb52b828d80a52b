// SPDX-License-Identifier: Apache-2.0
// Keys and values in pages, with left padding, and in entries that an index chooses.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <vector>

#include "cache_copy.h"
#include "matches_reference.h"
#include "misuse.h"
#include "random_case.h"
#include "reference/bound/arithmetic.h"
#include "reference/plain/call.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

constexpr CacheKind kKinds[] = {CacheKind::pages, CacheKind::entries};

TEST(Cache, HasTheBitsOfContiguousKeys) {
  int same = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const AttentionCase attention = random_case(seed);
    SCOPED_TRACE(describe(attention));
    const CaseTensors tensors(attention);
    ASSERT_TRUE(forward(tensors.forward_arguments(), attention.options).ok());
    for (const CacheKind kind : kKinds) {
      Random random(seed);
      same +=
          CacheCopy(tensors.forward_arguments(), kind, random).expect_the_same_results(attention.options, {}) ? 1 : 0;
    }
    if (HasFailure()) return;
  }
  EXPECT_GE(same, 12);
}

// The reference finds the keys of a cache by a way of its own.
TEST(Cache, MatchesTheReference) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    AttentionCase attention{.batch = 3, .heads_q = 4, .heads_kv = 2, .head_dim = 16, .head_dim_v = 24, .seed = seed};
    attention.q.rows = 9;
    attention.k = {.rows = 50, .seqused = {50, 0, 23}};
    attention.options.causal = CausalMask::bottom_right;
    const CaseTensors tensors(attention);
    for (const CacheKind kind : kKinds) {
      Random random(seed);
      const CacheCopy copy(tensors.forward_arguments(), kind, random);
      const ForwardArguments arguments = copy.arguments();
      const Result<Plan> plan = make_plan(arguments, attention.options);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      ASSERT_TRUE(plan->run(arguments).ok());
      const reference::ForwardResult expected =
          reference::forward(arguments, attention.options, reference::arithmetic_of(*plan), 1);
      const reference::WorstElement worst = reference::worst_element(arguments.o, expected.o);
      EXPECT_LE(worst.ratio, 1.0) << reference::describe(worst, arguments.o);
      const std::vector<double> plain = reference::plain::forward(arguments, attention.options).o;
      for (std::size_t i = 0; i < plain.size(); ++i) ASSERT_NEAR(plain[i], expected.o.value[i], 1e-12);
    }
  }
}

TEST(Cache, OfEightBitsHasTheBitsOfContiguousKeys) {
  constexpr std::int64_t kBatch = 2, kHeads = 2, kSeqlen = 70, kHeadDim = 32;
  AttentionCase attention{.dtype = DType::float16,
                          .batch = kBatch,
                          .heads_q = 4,
                          .heads_kv = kHeads,
                          .head_dim = kHeadDim,
                          .head_dim_v = kHeadDim};
  attention.q.rows = 100;
  attention.k = {.rows = kSeqlen, .seqused = {70, 33}};
  const CaseTensors tensors(attention);
  Random random(1);
  std::vector<std::int8_t> k(kBatch * kSeqlen * kHeads * kHeadDim), v(k.size());
  for (auto* elements : {&k, &v}) {
    for (std::int8_t& element : *elements) element = static_cast<std::int8_t>(random.integer(-127, 127));
  }
  std::vector<float> scales(kBatch * kHeads);
  for (float& scale : scales) scale = static_cast<float>(0.02 * (0.5 + random.uniform()));
  ForwardArguments arguments = tensors.forward_arguments();
  arguments.k = tensor(static_cast<const std::int8_t*>(k.data()), {kBatch, kSeqlen, kHeads, kHeadDim});
  arguments.v = tensor(static_cast<const std::int8_t*>(v.data()), {kBatch, kSeqlen, kHeads, kHeadDim});
  arguments.k_descale = arguments.v_descale = tensor(scales.data(), {kBatch, kHeads, 1});
  const Status status = forward(arguments);
  ASSERT_TRUE(status.ok()) << status.message();
  for (int repeat = 0; repeat < 10; ++repeat) {
    for (const CacheKind kind : kKinds) EXPECT_TRUE(CacheCopy(arguments, kind, random).expect_the_same_results({}, {}));
  }
}

/// Rows of one sequence of 200 tokens, whose pages are full of NaN elsewhere.
class PagedSequence {
 public:
  static constexpr std::int64_t kTokens = 200, kHeadsQ = 4, kHeadsKv = 2, kHeadDim = 40, kPageSize = 7, kPages = 40;

  PagedSequence() : table_(kPages), q_(kTokens * kHeadsQ * kHeadDim), pool_(2 * kPages * kPageRow, kNaNFloat) {
    Random random(3);
    std::iota(table_.begin(), table_.end(), 0);
    std::reverse(table_.begin(), table_.end());
    for (float& x : q_) x = static_cast<float>(random.normal());
    for (std::int64_t pool = 0; pool < 2; ++pool) {
      for (std::int64_t row = 0; row < kTokens; ++row) {
        float* to =
            pool_.data() + (pool * kPages + table_[row / kPageSize]) * kPageRow + row % kPageSize * kHeadsKv * kHeadDim;
        for (std::int64_t i = 0; i < kHeadsKv * kHeadDim; ++i) to[i] = static_cast<float>(random.normal());
      }
    }
  }

  /// O of tokens cut at `ends`: each part is a sequence of one call, or a call of its own.
  std::vector<float> run(const std::vector<std::int32_t>& ends, bool together, std::int64_t max_seqlen_q = -1) const {
    std::vector<float> o(q_.size());
    if (together) {
      call(ends, 0, o, max_seqlen_q);
      return o;
    }
    std::int32_t begin = 0;
    for (const std::int32_t end : ends) {
      call({end}, begin, o);
      begin = end;
    }
    return o;
  }

 private:
  static constexpr std::int64_t kPageRow = kPageSize * kHeadsKv * kHeadDim;
  static constexpr float kNaNFloat = std::numeric_limits<float>::quiet_NaN();

  void call(const std::vector<std::int32_t>& ends, std::int32_t begin, std::vector<float>& o,
            std::int64_t max_seqlen_q = -1) const {
    const auto batch = static_cast<std::int64_t>(ends.size());
    std::vector<std::int32_t> starts{0}, tables;
    for (const std::int32_t end : ends) {
      starts.push_back(end - begin);
      tables.insert(tables.end(), table_.begin(), table_.end());
    }
    const std::int64_t offset = begin * kHeadsQ * kHeadDim;
    const std::int64_t tokens = ends.back() - begin;
    ForwardArguments arguments;
    arguments.q = tensor(q_.data() + offset, {tokens, kHeadsQ, kHeadDim});
    arguments.k = tensor(pool_.data(), {kPages, kPageSize, kHeadsKv, kHeadDim});
    arguments.v = tensor(pool_.data() + kPages * kPageRow, {kPages, kPageSize, kHeadsKv, kHeadDim});
    arguments.o = tensor(o.data() + offset, {tokens, kHeadsQ, kHeadDim});
    arguments.sequences.cu_seqlens_q = tensor(std::as_const(starts).data(), {batch + 1});
    arguments.sequences.seqused_k = tensor(ends.data(), {batch});
    arguments.sequences.max_seqlen_q = max_seqlen_q;
    arguments.page_table = tensor(std::as_const(tables).data(), {batch, kPages});
    const Status status = forward(arguments, {.causal = CausalMask::bottom_right, .window = {.left = 90}});
    ASSERT_TRUE(status.ok()) << status.message();
  }

  std::vector<std::int32_t> table_;
  std::vector<float> q_, pool_;
};

// A row's bits do not depend on the rest of the batch, nor on the chunk that it came in: of calls with more than a few
// queries among one another, and of decode steps.
TEST(Cache, RowsDoNotDependOnTheirChunk) {
  const PagedSequence sequence;
  const std::vector<float> prefill = sequence.run({PagedSequence::kTokens}, true);
  for (const auto& ends : {std::vector<std::int32_t>{64, 128, 200}, {40, 80, 120, 160, 200}, {90, 200}}) {
    EXPECT_EQ(sequence.run(ends, false), prefill);
    EXPECT_EQ(sequence.run(ends, true), prefill);
  }
  std::vector<std::int32_t> single(PagedSequence::kTokens);
  std::iota(single.begin(), single.end(), 1);
  for (const auto& ends : {single, {1, 2, 3, 150, 151, 200}, {13, 26, 199, 200}}) {
    EXPECT_EQ(sequence.run(ends, true), prefill);
  }
  EXPECT_EQ(sequence.run(single, true, 1), sequence.run(single, false));
}

TEST(Cache, IsInThePlansExplanation) {
  const CaseTensors tensors(valid_case());
  Random random(1);
  ForwardArguments arguments = CacheCopy(tensors.forward_arguments(), CacheKind::pages, random).arguments();
  const Result<Plan> plan = make_plan(arguments);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_NE(plan->explain().find("pages         of " + std::to_string(arguments.k.shape[1]) + " rows"),
            std::string::npos)
      << plan->explain();
}

// valid_case()'s k and v, [2, 5, 2, ..], as two pages of five rows.
const std::array<std::int32_t, 4> kTable = {1, 0, 0, 1};
ConstTensorView table_of_two() { return tensor(kTable.data(), {2, 2}); }

std::vector<ForwardMisuse> cache_misuses() {
  using C = ForwardCall;
  return {
      {"PagesWithPackedKeys",
       [](C& c) {
         c.arguments.page_table = table_of_two();
         c.arguments.sequences.cu_seqlens_k = lengths_of({0, 1, 2});
       },
       kInvalid, "page_table is given with cu_seqlens_k: packed keys are not a cache, use seqused_k for its lengths"},
      {"PaddingWithPackedKeys",
       [](C& c) {
         c.arguments.sequences.leftpad_k = lengths_of({0, 1});
         c.arguments.sequences.cu_seqlens_k = lengths_of({0, 1, 2});
       },
       kInvalid, "leftpad_k is given with cu_seqlens_k: packed keys are not a cache, use seqused_k for its lengths"},
      {"PagesWithEntries",
       [](C& c) {
         c.arguments.page_table = table_of_two();
         c.arguments.sequences.cache_batch_idx = lengths_of({0, 1});
       },
       kInvalid, "cache_batch_idx is given with page_table: give the rows of page_table in the order of the batch"},
      {"RankOfThePageTable", [](C& c) { c.arguments.page_table = lengths_of({0, 1}); }, kInvalid,
       "page_table has rank 1: it must have rank 2 [batch, max_pages]"},
      {"DTypeOfThePageTable",
       [](C& c) {
         c.arguments.page_table = table_of_two();
         c.arguments.page_table.dtype = DType::float32;
       },
       kInvalid, "page_table is float32: it must be int32"},
      {"BatchOfThePageTable", [](C& c) { c.arguments.page_table = tensor(kTable.data(), {1, 4}); }, kInvalid,
       "page_table has shape [1, 4]: it must be [2, 4] [batch, max_pages]"},
      {"NullPageTable",
       [](C& c) {
         c.arguments.page_table = table_of_two();
         c.arguments.page_table.data = nullptr;
       },
       kInvalid, "page_table has shape [2, 2] and a null pointer"},
      {"EmptyPages",
       [](C& c) {
         c.arguments.page_table = table_of_two();
         c.arguments.k.shape[1] = c.arguments.v.shape[1] = 0;
       },
       kInvalid, "k has shape [2, 0, 2, 8]: a page must have 1 row or more"},
      {"EndlessPages",
       [](C& c) {
         c.arguments.page_table = table_of_two();
         c.arguments.k.shape = {1, std::int64_t{1} << 47, 2, 1};
         c.arguments.k.strides = {0, 0, 0, 1};
         c.arguments.v = c.arguments.k;
       },
       kInvalid, "page_table has shape [2, 2] of pages of 140737488355328 rows: it must span at most 2^48 rows"},
  };
}

std::vector<ForwardMisuse> cache_value_misuses() {
  using C = ForwardCall;
  return {
      {"PageThatThereIsNot",
       [](C& c) {
         static constexpr std::array<std::int32_t, 4> kBad = {1, 0, 0, 2};
         c.arguments.page_table = tensor(kBad.data(), {2, 2});
       },
       kInvalid, "page_table[1][1] is 2: the pages of k and v are numbered from 0 to 1"},
      {"NegativePage",
       [](C& c) {
         static constexpr std::array<std::int32_t, 4> kBad = {1, -1, -7, 1};
         c.arguments.page_table = tensor(kBad.data(), {2, 2});
         c.arguments.sequences.seqused_k = lengths_of({5, 1});
       },
       kInvalid, "page_table[1][0] is -7: the pages of k and v are numbered from 0 to 1"},
      {"MoreKeysThanPages",
       [](C& c) {
         c.arguments.page_table = table_of_two();
         c.arguments.sequences.seqused_k = lengths_of({10, 11});
       },
       kInvalid, "seqused_k[1] is 11: it must be from 0 to the sequence's length, which is 10"},
      {"PaddingOfAnotherBatch", [](C& c) { c.arguments.sequences.leftpad_k = lengths_of({1, 1, 1}); }, kInvalid,
       "leftpad_k has shape [3]: it must be [2] [batch]"},
      {"NegativePadding", [](C& c) { c.arguments.sequences.leftpad_k = lengths_of({0, -1}); }, kInvalid,
       "leftpad_k[1] is -1: it must be from 0 to the sequence's used rows, which are 5"},
      {"MorePaddingThanRows", [](C& c) { c.arguments.sequences.leftpad_k = lengths_of({6, 1}); }, kInvalid,
       "leftpad_k[0] is 6: it must be from 0 to the sequence's used rows, which are 5"},
      {"EntryThatThereIsNot", [](C& c) { c.arguments.sequences.cache_batch_idx = lengths_of({0, 2}); }, kInvalid,
       "cache_batch_idx[1] is 2: the entries of k and v are numbered from 0 to 1"},
      {"EntriesOfAnotherBatch", [](C& c) { c.arguments.sequences.cache_batch_idx = lengths_of({0}); }, kInvalid,
       "cache_batch_idx has shape [1]: it must be [2] [batch]"},
      {"OOverThePageTable",
       [](C& c) {
         c.arguments.page_table = table_of_two();
         c.arguments.page_table.data = c.arguments.o.data;
       },
       kInvalid, "o overlaps page_table: outputs must not share memory with any other tensor"},
  };
}

TEST(Misuse, OfCaches) {
  for (const ForwardMisuse& misuse : cache_misuses()) expect_rejected(valid_case(), misuse);
  for (const ForwardMisuse& misuse : cache_value_misuses()) expect_rejected(valid_case(), misuse);
}

TEST(Misuse, OfCachesInTheBackward) {
  using C = BackwardCall;
  for (const BackwardMisuse& misuse : std::vector<BackwardMisuse>{
           {"Padding", [](C& c) { c.arguments.sequences.leftpad_k = lengths_of({0, 1}); }, kUnsupported,
            "leftpad_k is given: no engine has the backward of a key-value cache"},
           {"Entries", [](C& c) { c.arguments.sequences.cache_batch_idx = lengths_of({0, 1}); }, kUnsupported,
            "cache_batch_idx is given: no engine has the backward of a key-value cache"}}) {
    expect_rejected(valid_case(), misuse);
  }
}

}  // namespace
}  // namespace strobe::test
