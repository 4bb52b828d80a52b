// SPDX-License-Identifier: Apache-2.0
// What is wrong with a sparse call is said, and nothing is written.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "strobe/sparse.h"

namespace strobe::test {
namespace {

/// Two sequences of two queries with four heads, on two key heads; four keys each; lists of three.
struct Call {
  Call() {
    a.q = tensor(floats.data(), {2, 2, 4, 8});
    a.o = tensor(out.data(), {2, 2, 4, 8});
    a.lse = tensor(out.data() + 128, {2, 4, 2});
    a.sink = tensor(floats.data() + 600, {4});
    for (SparseSource& s : a.sources) {
      s.k = tensor(floats.data() + 128, {2, 4, 2, 8});
      s.v = tensor(floats.data() + 256, {2, 4, 2, 8});
      s.indices = tensor(lists.data(), {2, 2, 2, 3});
      s.topk_length = tensor(lengths.data(), {2, 2});
    }
    a.sources[1] = {};
  }
  /// The keys in pages of two rows.
  void use_pages() {
    a.sources[0].k = tensor(floats.data() + 128, {4, 2, 2, 8});
    a.sources[0].v = tensor(floats.data() + 256, {4, 2, 2, 8});
    a.sources[0].page_table = tensor(pages.data(), {2, 2});
  }
  /// Queries and keys packed.
  void pack() {
    a.q = tensor(floats.data(), {4, 4, 8});
    a.o = tensor(out.data(), {4, 4, 8});
    a.lse = tensor(out.data() + 128, {4, 4});
    a.cu_seqlens_q = tensor(cumulative.data(), {3});
    a.sources[0].k = tensor(floats.data() + 128, {8, 2, 8});
    a.sources[0].v = tensor(floats.data() + 256, {8, 2, 8});
    a.sources[0].cu_seqlens_k = tensor(cumulative_k.data(), {3});
    a.sources[0].indices = tensor(lists.data(), {4, 2, 3});
    a.sources[0].topk_length = tensor(lengths.data(), {4});
  }

  std::vector<float> floats = std::vector<float>(640, 1.0F);
  std::vector<float> out = std::vector<float>(160, -7.0F);
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(1024);
  std::vector<std::int32_t> lists = std::vector<std::int32_t>(24, 3);
  std::vector<std::int32_t> lengths = {3, 3, 0, 1}, pages = {0, 1, 2, 3}, used = {4, 2};
  std::vector<std::int32_t> cumulative = {0, 2, 4}, cumulative_k = {0, 4, 8};
  SparseForwardArguments a;
  SparseOptions options;
  Execution execution;
};

struct SparseFault {
  std::string name;
  std::function<void(Call&)> make;
  std::string message;
};

class SparseMisuse : public testing::TestWithParam<SparseFault> {};

TEST_P(SparseMisuse, IsReportedAndWritesNothing) {
  Call call;
  GetParam().make(call);
  const Status status = sparse_forward(call.a, call.options, call.execution);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message(), GetParam().message);
  EXPECT_EQ(call.out, std::vector<float>(160, -7.0F));
}

TEST(SparseForward, ThatIsCorrectSucceeds) {
  for (int kind = 0; kind < 3; ++kind) {
    Call call;
    if (kind == 1) call.use_pages();
    if (kind == 2) call.pack();
    const Status status = sparse_forward(call.a);
    EXPECT_TRUE(status.ok()) << status.message();
    const double listed = 3.0 * std::exp(std::sqrt(8.0));  // beside a sink of 1
    EXPECT_NEAR(call.out[0], listed / (listed + std::exp(1.0)), 1e-6);
  }
}

const std::vector<SparseFault> kShapes = {
    {"NoQ", [](Call& c) { c.a.q = {}; }, "q is missing: give a tensor [batch, seqlen_q, heads_q, head_dim]"},
    {"FlatQ", [](Call& c) { c.a.q.rank = 2; }, "q has rank 2: it must have rank 4 or, packed, 3"},
    {"IntegerQ", [](Call& c) { c.a.q.dtype = DType::int32; }, "q is int32: it must be float32, float16 or bfloat16"},
    {"WideQ", [](Call& c) { c.a.q = tensor(c.floats.data(), {1, 1, 1, 577}); },
     "q has 577 columns: a head_dim must be from 1 to 576"},
    {"OOfAnotherDtype", [](Call& c) { c.a.o.dtype = DType::float16; }, "o is float16: it must be float32, as q is"},
    {"OOfAnotherShape", [](Call& c) { c.a.o.shape[2] = 3; },
     "o has shape [2, 2, 3, 8]: it must be [2, 2, 4, 8] [batch, seqlen_q, heads_q, head_dim_v]"},
    {"LseOfAnotherShape", [](Call& c) { c.a.lse.shape[2] = 1; },
     "lse has shape [2, 4, 1]: it must be [2, 4, 2] [batch, heads_q, seqlen_q]"},
    {"SinkOfAnotherShape", [](Call& c) { c.a.sink.shape[0] = 3; }, "sink has shape [3]: it must be [4] [heads_q]"},
    {"LengthsOfABatch", [](Call& c) { c.a.cu_seqlens_q = tensor(c.cumulative.data(), {3}); },
     "cu_seqlens_q is given and q has rank 4: it belongs to a packed q"},
    {"NoCumulativeLength",
     [](Call& c) {
       c.pack();
       c.a.cu_seqlens_q.shape[0] = 0;
     },
     "cu_seqlens_q has no element: it must have one more than there are sequences"},
    {"NoSource", [](Call& c) { c.a.sources[0].k = {}; }, "sources[0].k is missing: give a tensor of keys"},
    {"ListsWithoutKeys", [](Call& c) { c.a.sources[1].indices = c.a.sources[0].indices; },
     "sources[1].indices is given without sources[1].k"},
    {"KOfAnotherRank", [](Call& c) { c.a.sources[0].k.rank = 2; },
     "sources[0].k has rank 2: it must have rank 4 or, packed, 3"},
    {"PagesOfRank3",
     [](Call& c) {
       c.use_pages();
       c.a.sources[0].k = tensor(c.floats.data(), {8, 2, 8});
     },
     "sources[0].k has rank 3: pages have rank 4 [num_pages, page_size, heads_kv, head_dim]"},
    {"NarrowK", [](Call& c) { c.a.sources[0].k.shape[3] = 4; },
     "sources[0].k has 4 columns and q has 8: they must be equal"},
    {"IntegerK", [](Call& c) { c.a.sources[0].k.dtype = DType::int8; },
     "sources[0].k is int8: it must be float32, float16 or bfloat16"},
    {"FormatOfOtherColumns",
     [](Call& c) {
       c.a.sources[0].k_format = eight_bit_rows(RowElement::int8, 12);
       c.a.sources[0].k = tensor(c.bytes.data(), {2, 4, 2, 16});
     },
     "sources[0].k has 12 columns and q has 8: they must be equal"},
    {"FormatOfFloats", [](Call& c) { c.a.sources[0].k_format = eight_bit_rows(RowElement::int8, 8); },
     "sources[0].k is float32: it must be uint8: its rows have a format"},
    {"InvalidFormat", [](Call& c) { c.a.sources[0].k_format.part_count = 7; },
     "sources[0].k_format: part_count is 7: it must be from 1 to 4"},
    {"HeadsThatDoNotDivide",
     [](Call& c) {
       c.a.sources[0].k.shape[2] = 3;
       c.a.sources[0].v.shape[2] = 3;
     },
     "q has 4 heads and sources[0].k has 3: the first must be a multiple of the second"},
    {"SourcesOfOtherHeads",
     [](Call& c) {
       c.a.sources[1] = c.a.sources[0];
       c.a.sources[1].k.shape[2] = 1;
     },
     "sources[1].k has 1 heads and sources[0].k has 2: they must be equal"},
    {"VOfOtherRows", [](Call& c) { c.a.sources[0].v.shape[1] = 3; },
     "sources[0].v has shape [2, 3, 2, 8] and sources[0].k [2, 4, 2, 8]: they must agree but for the last axis"},
    {"VOfOtherColumns", [](Call& c) { c.a.sources[0].v.shape[3] = 4; },
     "sources[0].v has 4 columns and o has 8: they must be equal"},
    {"VBesideRowsThatHaveIt",
     [](Call& c) {
       c.a.sources[0].k_format = eight_bit_rows(RowElement::int8, 8);
       c.a.sources[0].k_format.head_dim_v = 8;
       c.a.sources[0].k = tensor(c.bytes.data(), {2, 4, 2, 12});
     },
     "sources[0].v is given, and k_format says that V is the first 8 columns of the rows of k"},
    {"NoV",
     [](Call& c) {
       c.a.sources[0].k_format = eight_bit_rows(RowElement::int8, 8);
       c.a.sources[0].k = tensor(c.bytes.data(), {2, 4, 2, 12});
       c.a.sources[0].v = {};
     },
     "o has 8 columns, and V of sources[0].k_format has 0 (0: give its rows as v)"},
    {"FormatWithoutV",
     [](Call& c) {
       c.a.sources[0].v = {};
       c.a.sources[0].v_format = eight_bit_rows(RowElement::int8, 8);
     },
     "sources[0].v_format is given without sources[0].v"},
    {"WideO",
     [](Call& c) {
       c.a.sources[0].v = {};
       c.a.q.shape[3] = 4;
       c.a.sources[0].k.shape[3] = 4;
     },
     "o has 8 columns and the rows of sources[0].k have 4: without v, V is their first ones"},
    {"OtherBatch",
     [](Call& c) {
       c.a.sources[0].k.shape[0] = 1;
       c.a.sources[0].v.shape[0] = 1;
     },
     "sources[0].k has 1 sequences and q has 2: they must be equal"},
    {"PoolWithPages",
     [](Call& c) {
       c.use_pages();
       c.a.sources[0].in_pool = true;
     },
     "sources[0].in_pool is set with page_table: rows of a pool belong to no sequence"},
    {"PoolWithLengths",
     [](Call& c) {
       c.a.sources[0].in_pool = true;
       c.a.sources[0].seqused_k = tensor(c.used.data(), {2});
     },
     "sources[0].in_pool is set with seqused_k: rows of a pool belong to no sequence"},
    {"PoolWithCausal", [](Call& c) { c.a.sources[0].in_pool = c.a.sources[0].causal = true; },
     "sources[0].in_pool is set with causal: rows of a pool belong to no sequence"},
    {"CumulativeKeysOfABatch", [](Call& c) { c.a.sources[0].cu_seqlens_k = tensor(c.cumulative_k.data(), {3}); },
     "sources[0].cu_seqlens_k is given and k has rank 4: cumulative lengths belong to a packed k"},
    {"NoLists", [](Call& c) { c.a.sources[0].indices = {}; },
     "sources[0].indices is missing: give a tensor [batch, seqlen_q, heads, topk]"},
    {"ListsOfOtherHeads", [](Call& c) { c.a.sources[0].indices.shape[2] = 3; },
     "sources[0].indices has 3 heads: it must have 1, or those of k, which are 2"},
    {"ListsOfFloats", [](Call& c) { c.a.sources[0].indices.dtype = DType::float32; },
     "sources[0].indices is float32: it must be int32"},
    {"LengthsOfAnotherShape", [](Call& c) { c.a.sources[0].topk_length.shape[1] = 1; },
     "sources[0].topk_length has shape [2, 1]: it must be [2, 2] [batch, seqlen_q]"},
    {"BlockSize", [](Call& c) { c.a.sources[0].block_size = 8; },
     "sources[0].block_size is 8: it must be 1, 16, 32, 64 or 128"},
    {"Scale", [](Call& c) { c.options.scale = std::numeric_limits<float>::infinity(); },
     "scale is inf: it must be finite"},
    {"Softcap", [](Call& c) { c.options.softcap = -1.0F; }, "softcap is -1: it must be positive, or 0 for none"},
    {"Threads", [](Call& c) { c.execution.threads = -1; },
     "threads is -1: it must be from 1 to 4096, or 0 for one per hardware thread"},
    {"Overlap", [](Call& c) { c.a.sources[0].v.data = c.out.data(); },
     "o overlaps sources[0].v: outputs must not share memory with any other tensor"},
    {"NullData", [](Call& c) { c.a.sources[0].k.data = nullptr; },
     "sources[0].k has shape [2, 4, 2, 8] and a null pointer"},
};
INSTANTIATE_TEST_SUITE_P(Shapes, SparseMisuse, testing::ValuesIn(kShapes),
                         [](const auto& one) { return one.param.name; });

const std::vector<SparseFault> kValues = {
    {"BeyondTheKeys", [](Call& c) { c.lists[5] = 4; },
     "sources[0].indices names 4 at place 2 of query 0, head 1 of sequence 0: it must be -1 or less than 4"},
    {"Negative", [](Call& c) { c.lists[6] = -2; },
     "sources[0].indices names -2 at place 0 of query 1, head 0 of sequence 0: it must be -1 or less than 4"},
    {"BeyondTheUsedKeys", [](Call& c) { c.a.sources[0].seqused_k = tensor(c.used.data(), {2}); },
     "sources[0].indices names 3 at place 0 of query 1, head 0 of sequence 1: it must be -1 or less than 2"},
    {"BeyondTheBlocks", [](Call& c) { c.a.sources[0].block_size = 16; },
     "sources[0].indices names 3 at place 0 of query 0, head 0 of sequence 0: it must be -1 or less than 1"},
    {"TooLong", [](Call& c) { c.lengths[1] = 4; },
     "sources[0].topk_length of query 1 of sequence 0 is 4: it must be from 0 to topk, which is 3"},
    {"NegativeLength", [](Call& c) { c.lengths[3] = -1; },
     "sources[0].topk_length of query 1 of sequence 1 is -1: it must be from 0 to topk, which is 3"},
    {"UsedKeys",
     [](Call& c) {
       c.used[1] = 5;
       c.a.sources[0].seqused_k = tensor(c.used.data(), {2});
     },
     "sources[0].seqused_k[1] is 5: it must be from 0 to 4"},
    {"NoSuchPage",
     [](Call& c) {
       c.use_pages();
       c.pages[1] = 4;
     },
     "sources[0].page_table[0][1] is 4, whose keys are listed: k has 4 pages"},
    {"BeyondThePool",
     [](Call& c) {
       c.a.sources[0].in_pool = true;
       c.lists[1] = 8;
     },
     "sources[0].indices names 8 at place 1 of query 0, head 0 of sequence 0: it must be -1 or less than 8"},
    {"CumulativeFromOne",
     [](Call& c) {
       c.pack();
       c.cumulative[0] = 1;
     },
     "cu_seqlens_q[0] is 1: it must be 0"},
    {"CumulativeDecreases",
     [](Call& c) {
       c.pack();
       c.cumulative_k[1] = 9;
     },
     "sources[0].cu_seqlens_k[2] is 8 after 9: cumulative lengths must not decrease"},
    {"CumulativeEndsEarly",
     [](Call& c) {
       c.pack();
       c.cumulative[2] = 3;
     },
     "cu_seqlens_q[2] is 3: it must be the number of rows, which is 4"},
    {"Stream", [](Call& c) { c.execution.stream = &c; }, "stream is given for tensors on the cpu: it must be null"},
};
INSTANTIATE_TEST_SUITE_P(Values, SparseMisuse, testing::ValuesIn(kValues),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace strobe::test
