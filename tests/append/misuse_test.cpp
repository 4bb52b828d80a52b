// SPDX-License-Identifier: Apache-2.0
// What is wrong with an append is said, and nothing is written then.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "strobe/cache.h"

namespace strobe::test {
namespace {

/// Two sequences of 3 and 5 rows, of at most 8, that get two more each; pages of 4 rows.
struct Call {
  Call() {
    a.k_cache = tensor(k.data(), {4, 4, 1, 8});
    a.v_cache = tensor(v.data(), {4, 4, 1, 8});
    a.k_new = tensor(rows.data(), {2, 2, 1, 8});
    a.v_new = tensor(rows.data(), {2, 2, 1, 8});
    a.q = tensor(rows.data(), {2, 2, 2, 8});
    a.q_out = tensor(q_out.data(), {2, 2, 2, 8});
    a.cache_seqlens = tensor(lengths.data(), {2});
    a.page_table = tensor(pages.data(), {2, 2});
    a.leftpad_k = tensor(padding.data(), {2});
    a.cos = a.sin = tensor(table.data(), {8, 4});
  }

  /// Entries of 8 rows instead of pages.
  void make_contiguous() {
    a.page_table = {};
    a.k_cache = tensor(k.data(), {2, 8, 1, 8});
    a.v_cache = tensor(v.data(), {2, 8, 1, 8});
  }
  void make_packed() {
    a.k_new = a.v_new = tensor(rows.data(), {4, 1, 8});
    a.cu_seqlens_new = tensor(cumulative.data(), {3});
  }
  void make_stored() {
    a.k_cache.dtype = a.v_cache.dtype = DType::int8;
    a.k_descale = a.v_descale = tensor(scales.data(), {1, 1, 1});
  }
  void make_stored_by_rows() {
    a.k_cache.dtype = a.v_cache.dtype = DType::int8;
    a.k_row_descale = tensor(k_scales.data(), {4, 1, 4});
    a.v_row_descale = tensor(v_scales.data(), {4, 1, 4});
  }

  std::vector<float> k = std::vector<float>(128, 7.0F), v = k, q_out = k;
  std::vector<float> rows = std::vector<float>(128), table = rows, scales = rows;
  std::vector<float> k_scales = std::vector<float>(32, 7.0F), v_scales = k_scales;
  std::vector<std::int32_t> lengths{3, 5}, pages{0, 1, 2, 3}, padding{1, 0}, entries{1, 0}, cumulative{0, 1, 4};
  std::vector<std::int32_t> positions{0, 1, 2, 3};
  AppendArguments a;
};

struct Misuse {
  std::string name;
  std::function<void(Call&)> make;
  std::string message;
};

class AppendMisuse : public testing::TestWithParam<Misuse> {};

TEST_P(AppendMisuse, IsReportedAndWritesNothing) {
  Call call;
  GetParam().make(call);
  const Status status = append(call.a);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message().substr(0, GetParam().message.size()), GetParam().message);
  for (const auto* const output : {&call.k, &call.v, &call.q_out, &call.k_scales, &call.v_scales}) {
    EXPECT_EQ(std::ranges::count(*output, 7.0F), static_cast<std::ptrdiff_t>(output->size()));
  }
}

std::vector<Misuse> wrong_shapes() {
  return {
      {"NoCache", [](Call& c) { c.a.k_cache = {}; },
       "k_cache is missing: give a tensor [num_pages, page_size, heads_kv, head_dim]"},
      {"IntegerCache", [](Call& c) { c.a.k_cache.dtype = DType::int32; },
       "k_cache is int32: it must be float32, float16 or bfloat16"},
      {"OtherValues", [](Call& c) { c.a.v_cache.shape[0] = 3; }, "v_cache has shape [3, 4, 1, 8]"},
      {"WideHeads",
       [](Call& c) {
         c.a.k_cache = tensor(c.k.data(), {1, 1, 1, 577});
         c.a.v_cache = tensor(c.v.data(), {1, 1, 1, 8});
       },
       "k_cache has 577 columns: a head_dim must be from 1 to 576"},
      {"WideValues",
       [](Call& c) {
         c.a.k_cache = tensor(c.k.data(), {1, 1, 1, 8});
         c.a.v_cache = tensor(c.v.data(), {1, 1, 1, 513});
       },
       "v_cache has 513 columns: a head_dim must be from 1 to 512"},
      {"NoLengths", [](Call& c) { c.a.cache_seqlens = {}; }, "cache_seqlens is missing: give a tensor [batch]"},
      {"FloatLengths", [](Call& c) { c.a.cache_seqlens.dtype = DType::float32; },
       "cache_seqlens is float32: it must be int32"},
      {"PagesOfAnotherBatch", [](Call& c) { c.a.page_table.shape[0] = 1; }, "page_table has shape [1, 2]"},
      {"PagesAndEntries", [](Call& c) { c.a.cache_batch_idx = tensor(c.entries.data(), {2}); },
       "cache_batch_idx is given with page_table: the rows of page_table say as much"},
      {"LargerCache",
       [](Call& c) {
         c.make_contiguous();
         c.a.k_cache.shape[0] = c.a.v_cache.shape[0] = 1;
       },
       "k_cache has batch 1 and cache_seqlens has 2: they must be equal without cache_batch_idx"},
      {"NoNewValues", [](Call& c) { c.a.v_new = {}; }, "v_new is missing"},
      {"NewValuesOfAnotherDtype", [](Call& c) { c.a.v_new.dtype = DType::bfloat16; },
       "v_new is bfloat16: it must be float32, as k_new is"},
      {"FewerNewValues", [](Call& c) { c.a.v_new.shape[1] = 1; }, "v_new has 1 rows and k_new 2: they must be equal"},
      {"OtherHeads", [](Call& c) { c.a.k_new = tensor(c.rows.data(), {2, 2, 2, 4}); },
       "k_new has shape [2, 2, 2, 4]: it must be [2, 2, 1, 8]"},
  };
}

std::vector<Misuse> wrong_rotations() {
  return {
      {"CosAlone", [](Call& c) { c.a.sin = {}; }, "sin is missing"},
      {"OtherSin", [](Call& c) { c.a.sin.shape[0] = 7; }, "sin has shape [7, 4]"},
      {"WideRotation", [](Call& c) { c.a.cos = c.a.sin = tensor(c.table.data(), {8, 5}); },
       "cos has 5 columns: twice as many must be from 2 to head_dim, which is 8"},
      {"QueriesWithoutAngles", [](Call& c) { c.a.cos = c.a.sin = {}; },
       "q is given without cos and sin: an append does nothing else with q"},
      {"PositionsWithoutAngles",
       [](Call& c) {
         c.a.cos = c.a.sin = c.a.q = {};
         c.a.q_out = {};
         c.a.positions = tensor(c.positions.data(), {2, 2});
       },
       "positions is given without cos and sin"},
      {"NoRotatedQueries", [](Call& c) { c.a.q_out = {}; }, "q_out is missing"},
      {"FewerRotatedQueries", [](Call& c) { c.a.q_out.shape[1] = 1; }, "q_out has 1 rows and q 2: they must be equal"},
      {"OutputWithoutQueries", [](Call& c) { c.a.q = {}; }, "q_out is given without q"},
      {"CumulativeLengthsWithoutQueries",
       [](Call& c) {
         c.a.q = {};
         c.a.q_out = {};
         c.a.cu_seqlens_q = tensor(c.cumulative.data(), {3});
       },
       "cu_seqlens_q is given without q"},
      {"PositionsWithoutQueries",
       [](Call& c) {
         c.a.q = {};
         c.a.q_out = {};
         c.a.positions_q = tensor(c.positions.data(), {2, 2});
       },
       "positions_q is given without q"},
  };
}

std::vector<Misuse> wrong_scales_and_memory() {
  return {
      {"ScalesOfAFloatCache", [](Call& c) { c.a.k_descale = tensor(c.scales.data(), {1, 1, 1}); },
       "k_descale is given, but k_cache is float32: scales belong to caches of int8 and float8_e4m3"},
      {"NoScales",
       [](Call& c) {
         c.make_stored();
         c.a.v_descale = {};
       },
       "v_descale is missing: give a tensor [batch or 1, heads_kv or 1, 1]"},
      {"ScalesByRows",
       [](Call& c) {
         c.make_stored();
         c.a.k_descale = tensor(c.scales.data(), {2, 1, 8});
       },
       "k_descale has shape [2, 1, 8]: an append takes [batch or 1, heads_kv or 1, 1], or writes a scale for each row "
       "to "
       "k_row_descale and v_row_descale"},
      {"ScalesOfOtherHeads",
       [](Call& c) {
         c.make_stored();
         c.a.v_descale = tensor(c.scales.data(), {2, 3, 1});
       },
       "v_descale has shape [2, 3, 1]: it must be [2, 1, 1]"},
      {"RowScalesOfAFloatCache", [](Call& c) { c.a.v_row_descale = tensor(c.v_scales.data(), {4, 1, 4}); },
       "v_row_descale is given, but k_cache is float32: scales belong to caches of int8 and float8_e4m3"},
      {"BothKindsOfScales",
       [](Call& c) {
         c.make_stored_by_rows();
         c.a.v_descale = tensor(c.scales.data(), {1, 1, 1});
       },
       "v_descale is given with scales of rows: give k_descale and v_descale, or k_row_descale and v_row_descale"},
      {"RowScalesOfKeysAlone",
       [](Call& c) {
         c.make_stored_by_rows();
         c.a.v_row_descale = {};
       },
       "v_row_descale is missing: give a tensor [num_pages, heads_kv, page_size]"},
      {"RowScalesOfSequences",
       [](Call& c) {
         c.make_stored_by_rows();
         c.a.k_row_descale = tensor(c.k_scales.data(), {2, 1, 8});
       },
       "k_row_descale has shape [2, 1, 8]: it must be [4, 1, 4]"},
      {"RowScalesOfOneEntry",
       [](Call& c) {
         c.make_contiguous();
         c.make_stored_by_rows();
         c.a.k_row_descale = tensor(c.k_scales.data(), {1, 1, 8});
       },
       "k_row_descale has shape [1, 1, 8]: it must be [2, 1, 8]"},
      {"RowScalesShareMemory",
       [](Call& c) {
         c.make_stored_by_rows();
         c.a.v_row_descale.data = c.k_scales.data() + 8;
       },
       "k_row_descale overlaps v_row_descale: outputs must not share memory"},
      {"CacheIsNewRows", [](Call& c) { c.a.k_new.data = c.k.data(); },
       "k_cache overlaps k_new: outputs must not share memory with any other tensor"},
      {"CachesAreOne", [](Call& c) { c.a.v_cache.data = c.k.data(); }, "k_cache overlaps v_cache"},
      {"QueriesInPlace", [](Call& c) { c.a.q_out.data = c.rows.data(); }, "q_out overlaps "},
      {"NullData", [](Call& c) { c.a.page_table.data = nullptr; }, "page_table has shape [2, 2] and a null pointer"},
  };
}

std::vector<Misuse> wrong_values() {
  return {
      {"NegativeLength", [](Call& c) { c.lengths[1] = -1; }, "cache_seqlens[1] is -1: it must not be negative"},
      {"LargePadding", [](Call& c) { c.padding[0] = 4; },
       "leftpad_k[0] is 4: it must be from 0 to cache_seqlens[0], which is 3"},
      {"NegativePadding", [](Call& c) { c.padding[1] = -2; }, "leftpad_k[1] is -2"},
      {"ShortPageTable", [](Call& c) { c.lengths[1] = 7; },
       "sequence 1 has 7 rows and appends 2: its part of the cache has 8"},
      {"ShortCache",
       [](Call& c) {
         c.make_contiguous();
         c.lengths[0] = 7;
       },
       "sequence 0 has 7 rows and appends 2: its part of the cache has 8"},
      {"PageBeyondTheCache", [](Call& c) { c.pages[3] = 4; },
       "page_table[1][1] is 4: the pages of k_cache and v_cache are numbered from 0 to 3"},
      {"NegativePage", [](Call& c) { c.pages[1] = -1; },
       "page_table[0][1] is -1: the pages of k_cache and v_cache are numbered from 0 to 3"},
      {"EntryBeyondTheCache",
       [](Call& c) {
         c.make_contiguous();
         c.entries[0] = 2;
         c.a.cache_batch_idx = tensor(c.entries.data(), {2});
       },
       "cache_batch_idx[0] is 2: the entries of k_cache and v_cache are numbered from 0 to 1"},
      {"SharedPage",
       [](Call& c) {
         c.pages = {0, 1, 2, 1};
         c.lengths = {4, 4};
       },
       "row 0 of page 1 is appended to by sequence 0 and by sequence 1: new rows must not share memory"},
      {"PageTwice",
       [](Call& c) {
         c.pages = {0, 0, 2, 3};
         c.make_packed();
         c.cumulative = {0, 4, 4};
         c.lengths = {2, 5};
         c.rows.assign(128, 0.0F);
         c.a.k_cache.shape[1] = c.a.v_cache.shape[1] = 3;
       },
       "row 2 of page 0 is appended to by sequence 0 and by sequence 0: new rows must not share memory"},
      {"SharedEntry",
       [](Call& c) {
         c.make_contiguous();
         c.entries = {1, 1};
         c.lengths = {4, 5};
         c.a.cache_batch_idx = tensor(c.entries.data(), {2});
       },
       "row 5 of cache entry 1 is appended to by sequence 0 and by sequence 1: new rows must not share memory"},
      {"CumulativeLengthsFromOne",
       [](Call& c) {
         c.make_packed();
         c.cumulative[0] = 1;
       },
       "cu_seqlens_new[0] is 1: it must be 0"},
      {"FallingCumulativeLengths",
       [](Call& c) {
         c.make_packed();
         c.cumulative[1] = 5;
       },
       "cu_seqlens_new[2] is 4 after 5: cumulative lengths must not decrease"},
      {"CumulativeLengthsOfFewerRows",
       [](Call& c) {
         c.make_packed();
         c.cumulative[2] = 3;
       },
       "cu_seqlens_new[2] is 3: it must be the number of rows, which is 4"},
  };
}

std::vector<Misuse> wrong_positions() {
  return {
      {"KeyWithoutAngles", [](Call& c) { c.a.cos.shape[0] = c.a.sin.shape[0] = 6; },
       "key 1 of sequence 1 is at position 6: cos and sin have 6 positions"},
      {"QueryWithoutAngles",
       [](Call& c) {
         c.a.cos.shape[0] = c.a.sin.shape[0] = 7;
         c.a.q = tensor(c.rows.data(), {2, 3, 2, 8});
         c.a.q_out = tensor(c.q_out.data(), {2, 3, 2, 8});
       },
       "query 2 of sequence 1 is at position 7: cos and sin have 7 positions"},
      {"GivenPositionWithoutAngles",
       [](Call& c) {
         c.positions[2] = -1;
         c.a.positions = tensor(c.positions.data(), {2, 2});
       },
       "key 0 of sequence 1 is at position -1: cos and sin have 8 positions"},
      {"GivenQueryPositionWithoutAngles",
       [](Call& c) {
         c.positions[1] = 8;
         c.a.positions_q = tensor(c.positions.data(), {2, 2});
       },
       "query 1 of sequence 0 is at position 8: cos and sin have 8 positions"},
  };
}

std::string name_of_misuse(const testing::TestParamInfo<Misuse>& one) { return one.param.name; }

INSTANTIATE_TEST_SUITE_P(Shapes, AppendMisuse, testing::ValuesIn(wrong_shapes()), name_of_misuse);
INSTANTIATE_TEST_SUITE_P(Rotations, AppendMisuse, testing::ValuesIn(wrong_rotations()), name_of_misuse);
INSTANTIATE_TEST_SUITE_P(Memory, AppendMisuse, testing::ValuesIn(wrong_scales_and_memory()), name_of_misuse);
INSTANTIATE_TEST_SUITE_P(Values, AppendMisuse, testing::ValuesIn(wrong_values()), name_of_misuse);
INSTANTIATE_TEST_SUITE_P(Positions, AppendMisuse, testing::ValuesIn(wrong_positions()), name_of_misuse);

TEST(Append, TakesTheCallThatMisusesStartFrom) {
  Call call;
  const Status status = append(call.a);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(Append, TakesNoStreamOnTheCpu) {
  Call call;
  int stream = 0;
  EXPECT_EQ(append(call.a, {.stream = &stream}).code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace strobe::test
