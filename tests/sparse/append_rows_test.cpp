// SPDX-License-Identifier: Apache-2.0
// strobe::append_rows: the bytes of encode_rows in their places, and no other byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "attention/random.h"
#include "strobe/row_format.h"

namespace strobe::test {
namespace {

constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kPageSize = 5;
constexpr std::int64_t kPages = 8;

/// Two sequences that have 3 and 9 rows and get 4 and 2 more; pages lie in disorder. Each page begins at a multiple of
/// 256 bytes, whose rest must stay as it is.
struct Append {
  explicit Append(const RowFormat& the_format) : format(the_format) {
    const std::int64_t page = kPageSize * kHeads * format.row_bytes;
    const std::int64_t stride = (page + 255) / 256 * 256 + 256;
    bytes.assign(static_cast<std::size_t>(kPages * stride + 256), 0x5A);
    start = bytes.data() + (256 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 256) % 256;
    a.cache = tensor(start, {kPages, kPageSize, kHeads, format.row_bytes});
    a.cache.strides[0] = stride;
    Random random(9);
    rows.resize(static_cast<std::size_t>(6 * kHeads * format.columns()));
    for (float& x : rows) x = static_cast<float>(random.normal());
    a.rows = tensor(rows.data(), {6, kHeads, format.columns()});
    a.cu_seqlens_new = tensor(cumulative.data(), {3});
    a.cache_seqlens = tensor(lengths.data(), {2});
    a.page_table = tensor(table.data(), {2, 3});
  }

  RowFormat format;
  std::vector<std::uint8_t> bytes;
  std::uint8_t* start;
  std::vector<float> rows;
  std::vector<std::int32_t> cumulative = {0, 4, 6}, lengths = {3, 9}, table = {6, 2, 0, 1, 7, 4}, entries = {1, 0};
  AppendRowsArguments a;
};

class AppendRows : public testing::TestWithParam<std::size_t> {
 protected:
  static std::vector<RowFormat> formats() {
    return {mla_bfloat16_rows(), deepseek_v32_rows(),          deepseek_v4_rows(),
            deepseek_v41_rows(), deepseek_v41_four_bit_rows(), eight_bit_rows(RowElement::int8, 64)};
  }
  RowFormat format_ = formats()[GetParam()];
};

TEST_P(AppendRows, WritesTheBytesOfAnEncodingInTheirPlaces) {
  Append call(format_);
  const Status status = append_rows(call.a, format_);
  ASSERT_TRUE(status.ok()) << status.message();
  // The same by an encoding of whole pages, rows that are not new being those that are there.
  Append expected(format_);
  const std::int64_t columns = format_.columns();
  const std::vector<std::pair<std::int64_t, std::int64_t>> places = {{6, 3}, {6, 4}, {2, 0}, {2, 1}, {7, 4}, {4, 0}};
  for (std::size_t i = 0; i < places.size(); ++i) {
    const auto [page, row] = places[i];
    std::vector<float> whole(static_cast<std::size_t>(kPageSize * kHeads * columns));
    const auto size = static_cast<std::size_t>(kHeads * columns);
    std::copy_n(expected.rows.begin() + static_cast<std::ptrdiff_t>(i * size), size,
                whole.begin() + row * static_cast<std::ptrdiff_t>(size));
    std::vector<std::uint8_t> encoded_bytes(static_cast<std::size_t>(kPageSize * kHeads * format_.row_bytes + 256));
    auto* const at = encoded_bytes.data() + (256 - reinterpret_cast<std::uintptr_t>(encoded_bytes.data()) % 256) % 256;
    const TensorView encoded = tensor(at, {1, kPageSize, kHeads, format_.row_bytes});
    ASSERT_TRUE(encode_rows(tensor(whole.data(), {1, kPageSize, kHeads, columns}), encoded, format_).ok());
    std::uint8_t* const to = expected.start + page * expected.a.cache.strides[0];
    const std::int64_t body = format_.row_bytes - format_.tail_bytes;
    const std::int64_t first = row * kHeads;
    std::copy_n(at + first * body, kHeads * body, to + first * body);
    const std::int64_t tails = kPageSize * kHeads * body + first * format_.tail_bytes;
    std::copy_n(at + tails, kHeads * format_.tail_bytes, to + tails);
  }
  const auto count = static_cast<std::size_t>(kPages * call.a.cache.strides[0]) - 256;
  EXPECT_EQ(std::memcmp(call.start, expected.start, count), 0);
}

INSTANTIATE_TEST_SUITE_P(All, AppendRows, testing::Range<std::size_t>(0, 6));

TEST(AppendRowsOfEntries, GoToTheEntriesThatAreNamed) {
  Append call(mla_bfloat16_rows());
  call.a.cache = tensor(call.start, {2, 12, kHeads, 1152});
  call.a.page_table = {};
  call.a.cache_batch_idx = tensor(call.entries.data(), {2});
  call.lengths = {0, 10};
  ASSERT_TRUE(append_rows(call.a, call.format).ok());
  std::uint16_t first = 0;
  std::memcpy(&first, call.start + 12 * kHeads * 1152, 2);  // entry 1, row 0
  EXPECT_EQ(first, to_bfloat16(call.rows[0]).bits);
  EXPECT_EQ(call.start[0], 0x5A);
}

struct AppendFault {
  std::string name;
  std::function<void(Append&)> make;
  std::string message;
};

class AppendRowsMisuse : public testing::TestWithParam<AppendFault> {};

TEST_P(AppendRowsMisuse, IsReportedAndWritesNothing) {
  Append call(deepseek_v4_rows());
  const std::vector<std::uint8_t> before = call.bytes;
  GetParam().make(call);
  const Status status = append_rows(call.a, call.format);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message(), GetParam().message);
  EXPECT_EQ(call.bytes, before);
}

INSTANTIATE_TEST_SUITE_P(
    All, AppendRowsMisuse,
    testing::ValuesIn(std::vector<AppendFault>{
        {"InvalidFormat", [](Append& c) { c.format.part_count = 0; },
         "format: part_count is 0: it must be from 1 to 4"},
        {"NoCache", [](Append& c) { c.a.cache = {}; },
         "cache is missing: give a tensor [batch_cache or num_pages, rows, heads_kv, row_bytes]"},
        {"OtherColumns", [](Append& c) { c.a.rows.shape[2] = 511; },
         "rows has shape [6, 2, 511]: it must be [6, 2, 512] [total_new, heads_kv, columns]"},
        {"Integers", [](Append& c) { c.a.rows.dtype = DType::int32; },
         "rows is int32: it must be float32, float16 or bfloat16"},
        {"NoLengths", [](Append& c) { c.a.cache_seqlens = {}; }, "cache_seqlens is missing: give a tensor [batch]"},
        {"TableOfAnotherBatch", [](Append& c) { c.a.page_table.shape[0] = 1; },
         "page_table has shape [1, 3]: it must be [2, 3] [batch, max_pages]"},
        {"TableAndEntries", [](Append& c) { c.a.cache_batch_idx = tensor(c.entries.data(), {2}); },
         "cache_batch_idx is given with page_table: the rows of page_table say as much"},
        {"OtherBatch", [](Append& c) { c.a.page_table = {}; },
         "cache has batch 8 and cache_seqlens has 2: they must be equal without cache_batch_idx"},
        {"TooManyRows", [](Append& c) { c.lengths[0] = 12; },
         "sequence 0 has 12 rows and appends 4: its part of the cache has 15"},
        {"NegativeLength", [](Append& c) { c.lengths[1] = -1; }, "cache_seqlens[1] is -1: it must not be negative"},
        {"NoSuchPage", [](Append& c) { c.table[1] = 8; },
         "page_table[0][1] is 8: the pages of k_cache and v_cache are numbered from 0 to 7"},
        {"SameRow",
         [](Append& c) {
           c.table[3] = 6;
           c.lengths[1] = 3;
         },
         "row 3 of page 6 is appended to by sequence 0 and by sequence 1: new rows must not share memory"},
        {"CumulativeEndsEarly", [](Append& c) { c.cumulative[2] = 5; },
         "cu_seqlens_new[2] is 5: it must be the number of rows, which is 6"},
        {"Overlap", [](Append& c) { c.a.rows.data = c.start; },
         "cache overlaps rows: outputs must not share memory with any other tensor"},
    }),
    [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace strobe::test
