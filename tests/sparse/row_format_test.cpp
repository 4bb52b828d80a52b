// SPDX-License-Identifier: Apache-2.0
// Rows in formats: encoded and decoded, against float64, and what is wrong with a format is said.
#include "strobe/row_format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "attention/random.h"

namespace strobe::test {
namespace {

/// Every magnitude that an element can have.
std::vector<double> magnitudes_of(RowElement element) {
  std::vector<double> all;
  if (element == RowElement::float8_e4m3) {
    for (unsigned bits = 0; bits < 0x7F; ++bits) {
      const unsigned exponent = bits >> 3U;
      const double mantissa = bits & 7U;
      all.push_back(exponent == 0 ? std::ldexp(mantissa, -9)
                                  : std::ldexp(8.0 + mantissa, static_cast<int>(exponent) - 10));
    }
  } else if (element == RowElement::float4_e2m1) {
    all = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
  } else {
    const int largest = element == RowElement::int8 ? 127 : 7;
    for (int i = 0; i <= largest; ++i) all.push_back(i);
  }
  return all;
}

double nearest_distance(double x, const std::vector<double>& magnitudes) {
  double least = std::numeric_limits<double>::infinity();
  for (const double magnitude : magnitudes) least = std::min(least, std::fabs(std::fabs(x) - magnitude));
  return least;
}

/// A cache of a format with gaps between pages, all bytes 0xA5 at first.
struct Cache {
  Cache(const RowFormat& the_format, std::int64_t pages, std::int64_t page_size, std::int64_t heads)
      : format(the_format) {
    const std::int64_t page_bytes = page_size * heads * format.row_bytes;
    const std::int64_t stride = (page_bytes + 255) / 256 * 256 + 256;
    bytes.assign(static_cast<std::size_t>(pages * stride + 256), 0xA5);
    auto* const start = bytes.data() + (256 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 256) % 256;
    view = tensor(start, {pages, page_size, heads, format.row_bytes});
    view.strides[0] = stride;
  }
  const std::uint8_t* page(std::int64_t index) const {
    return static_cast<const std::uint8_t*>(view.data) + index * view.strides[0];
  }

  RowFormat format;
  std::vector<std::uint8_t> bytes;
  TensorView view;
};

RowFormat formats_of_four_bits(RowElement element, RowScale scale) {
  return {
      .parts =
          {RowPart{
               .element = element, .columns = 90, .offset = 0, .scale = scale, .scale_columns = 32, .scale_offset = 48},
           RowPart{.element = RowElement::float16, .columns = 7, .offset = 60}},
      .part_count = 2,
      .head_dim_v = 90,
      .row_bytes = 80,
      .alignment = 4};
}

std::vector<RowFormat> formats() {
  RowFormat with_bfloat16 = eight_bit_rows(RowElement::float8_e4m3, 67);
  with_bfloat16.parts[0].scale = RowScale::bfloat16;
  return {mla_bfloat16_rows(),
          deepseek_v32_rows(),
          deepseek_v4_rows(),
          deepseek_v41_rows(),
          deepseek_v41_four_bit_rows(),
          eight_bit_rows(RowElement::int8, 128),
          eight_bit_rows(RowElement::float8_e4m3, 67),
          with_bfloat16,
          formats_of_four_bits(RowElement::int4, RowScale::float32),
          formats_of_four_bits(RowElement::float4_e2m1, RowScale::float8_e8m0)};
}

class RowFormats : public testing::TestWithParam<std::size_t> {
 protected:
  RowFormat format_ = formats()[GetParam()];
};

/// Every element is the nearest that its element type has, on the scale that its group was given; scales are the least
/// that hold the group.
TEST_P(RowFormats, RoundTripAgainstFloat64) {
  Random random(GetParam() + 1);
  const std::int64_t columns = format_.columns();
  Cache cache(format_, 3, 5, 2);
  std::vector<float> rows(static_cast<std::size_t>(30 * columns));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<float>(random.normal() * std::exp2(static_cast<double>(i / 97 % 23) - 11.0));
  }
  std::vector<float> decoded(rows.size());
  ASSERT_TRUE(encode_rows(tensor(rows.data(), {3, 5, 2, columns}), cache.view, format_).ok());
  ASSERT_TRUE(decode_rows(cache.view, tensor(decoded.data(), {3, 5, 2, columns}), format_).ok());
  std::int64_t first = 0;
  for (std::int64_t p = 0; p < format_.part_count; ++p) {
    const RowPart& part = format_.parts[static_cast<std::size_t>(p)];
    const std::int64_t group = part.scale == RowScale::none ? part.columns : part.scale_columns;
    for (std::int64_t row = 0; row < 30; ++row) {
      for (std::int64_t begin = 0; begin < part.columns; begin += group) {
        const std::int64_t end = std::min<std::int64_t>(begin + group, part.columns);
        const std::int64_t at = row * columns + first;
        if (part.scale == RowScale::none) {
          const double unit = part.element == RowElement::bfloat16 ? 0x1p-8 : 0x1p-11;
          for (std::int64_t c = begin; c < end; ++c) {
            const double x = rows[static_cast<std::size_t>(at + c)];
            EXPECT_NEAR(decoded[static_cast<std::size_t>(at + c)], x, unit * std::fabs(x) + 0x1p-25);
          }
          continue;
        }
        const std::vector<double> magnitudes = magnitudes_of(part.element);
        double largest = 0.0;
        for (std::int64_t c = begin; c < end; ++c) {
          largest = std::max<double>(largest, std::fabs(rows[static_cast<std::size_t>(at + c)]));
        }
        double scale = largest / magnitudes.back();
        const double exact = scale;
        if (part.scale == RowScale::float8_e8m0 || part.scale == RowScale::float32_power_of_two) {
          scale = std::exp2(std::ceil(std::log2(scale)));
        } else if (part.scale == RowScale::float8_e4m3) {
          const std::vector<double> scales = magnitudes_of(RowElement::float8_e4m3);
          const auto above = std::lower_bound(scales.begin(), scales.end(), scale);
          scale = above == scales.end() ? scales.back() : *above;  // a group whose scale is larger is limited
        } else if (part.scale == RowScale::bfloat16) {
          int exponent = 0;
          const double fraction = std::frexp(scale, &exponent);
          scale = std::ldexp(std::ceil(std::ldexp(fraction, 8)), exponent - 8);
        } else {
          scale = static_cast<double>(static_cast<float>(scale));
        }
        EXPECT_GE(scale * (1.0 + 0x1p-23), part.scale == RowScale::float8_e4m3 ? std::min(exact, 448.0) : exact);
        for (std::int64_t c = begin; c < end; ++c) {
          const double x = rows[static_cast<std::size_t>(at + c)];
          const double y = decoded[static_cast<std::size_t>(at + c)];
          // y is an element on the scale, but for the product's rounding, and no other is nearer to x, but for the
          // quotient's.
          const double slack = 0x1p-23 * std::fabs(x) + 0x1p-23 * std::fabs(y);
          EXPECT_LE(nearest_distance(y / scale, magnitudes) * scale, slack) << "column " << first + c;
          EXPECT_LE(std::fabs(y - x), nearest_distance(x / scale, magnitudes) * scale + slack)
              << "column " << first + c;
        }
      }
    }
    first += part.columns;
  }
}

TEST_P(RowFormats, BytesBetweenPagesStay) {
  Cache cache(format_, 2, 3, 1);
  std::vector<float> rows(static_cast<std::size_t>(6 * format_.columns()), 1.0F);
  ASSERT_TRUE(encode_rows(tensor(rows.data(), {2, 3, 1, format_.columns()}), cache.view, format_).ok());
  const std::uint8_t* const end_of_page = cache.page(0) + 3 * format_.row_bytes;
  EXPECT_TRUE(std::all_of(end_of_page, cache.page(1), [](std::uint8_t byte) { return byte == 0xA5; }));
  EXPECT_NE(cache.page(1)[0], 0xA5);
}

TEST_P(RowFormats, AGroupWithoutNumbersIsNaN) {
  const std::int64_t columns = format_.columns();
  Cache cache(format_, 1, 2, 1);
  std::vector<float> rows(static_cast<std::size_t>(2 * columns), 1.0F);
  rows[3] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> decoded(rows.size());
  ASSERT_TRUE(encode_rows(tensor(rows.data(), {1, 2, 1, columns}), cache.view, format_).ok());
  ASSERT_TRUE(decode_rows(cache.view, tensor(decoded.data(), {1, 2, 1, columns}), format_).ok());
  const RowPart& part = format_.parts[0];
  const std::int64_t group = part.scale == RowScale::none ? 1 : part.scale_columns;
  for (std::int64_t c = 0; c < 2 * columns; ++c) {
    const bool hit = part.scale == RowScale::none ? c == 3 : c < group;
    EXPECT_EQ(std::isnan(decoded[static_cast<std::size_t>(c)]), hit) << c;
  }
}

TEST_P(RowFormats, ThreadsChangeNoByte) {
  Random random(5);
  const std::int64_t columns = format_.columns();
  std::vector<float> rows(static_cast<std::size_t>(400 * columns));
  for (float& x : rows) x = static_cast<float>(random.normal());
  Cache one(format_, 2, 200, 1);
  Cache many(format_, 2, 200, 1);
  const TensorView from = tensor(rows.data(), {2, 200, 1, columns});
  ASSERT_TRUE(encode_rows(from, one.view, format_, {.threads = 1}).ok());
  ASSERT_TRUE(encode_rows(from, many.view, format_, {.threads = 7}).ok());
  for (std::int64_t page = 0; page < 2; ++page) {
    EXPECT_EQ(std::memcmp(one.page(page), many.page(page), static_cast<std::size_t>(200 * format_.row_bytes)), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, RowFormats, testing::Range<std::size_t>(0, formats().size()));

/// FlashMLA's layout, byte by byte: 448 elements and 64 bfloat16 of every row, then each row's seven scales.
TEST(RowFormat, DeepseekV4KeepsScalesBehindThePage) {
  Cache cache(deepseek_v4_rows(), 1, 2, 1);
  std::vector<float> rows(1024, 0.0F);
  rows[512 + 64] = 448.0F;   // row 1, group 1: a scale of 1
  rows[512 + 128] = 900.0F;  // group 2: the least power of 2 that holds it is 4
  rows[512 + 448] = 1.0F;
  ASSERT_TRUE(encode_rows(tensor(rows.data(), {1, 2, 1, 512}), cache.view, deepseek_v4_rows()).ok());
  const std::uint8_t* const page = cache.page(0);
  EXPECT_EQ(page[576 + 64], 0x7E);   // 448
  EXPECT_EQ(page[576 + 128], 0x76);  // 225 is rounded to 224
  EXPECT_EQ(page[576 + 448], 0x80);
  EXPECT_EQ(page[576 + 449], 0x3F);  // bfloat16 1
  EXPECT_EQ(page[1152 + 8 + 1], 127);
  EXPECT_EQ(page[1152 + 8 + 2], 129);
  EXPECT_EQ(page[1152 + 15], 0);
}

TEST(RowFormat, DeepseekV32HasItsScalesInTheRow) {
  Cache cache(deepseek_v32_rows(), 1, 1, 1);
  std::vector<float> rows(576, 0.0F);
  rows[128] = -448.0F;
  rows[575] = 2.0F;
  ASSERT_TRUE(encode_rows(tensor(rows.data(), {1, 1, 1, 576}), cache.view, deepseek_v32_rows()).ok());
  const std::uint8_t* const row = cache.page(0);
  EXPECT_EQ(row[128], 0xFE);
  float scale = 0.0F;
  std::memcpy(&scale, row + 516, 4);
  EXPECT_EQ(scale, 1.0F);
  EXPECT_EQ(row[655], 0x40);
}

/// vLLM's and SGLang's layouts of DeepSeek-V4.1: elements of all rows of a page, then each row's scales.
TEST(RowFormat, DeepseekV41KeepsScalesBehindThePage) {
  std::vector<float> rows(1024, 0.0F);
  rows[512 + 32] = 448.0F;   // row 1, group 1: a scale of 1
  rows[512 + 511] = 900.0F;  // group 15: the least power of 2 that holds it is 4
  Cache cache(deepseek_v41_rows(), 1, 2, 1);
  ASSERT_TRUE(encode_rows(tensor(rows.data(), {1, 2, 1, 512}), cache.view, deepseek_v41_rows()).ok());
  const std::uint8_t* const page = cache.page(0);
  EXPECT_EQ(page[512 + 32], 0x7E);   // 448
  EXPECT_EQ(page[512 + 511], 0x76);  // 225 is rounded to 224
  EXPECT_EQ(page[1024 + 16 + 1], 127);
  EXPECT_EQ(page[1024 + 16 + 15], 129);

  rows[512 + 17] = 9.0F;  // group 1 of 16 columns: a scale of 1.5
  rows[512 + 16] = -0.75F;
  Cache four(deepseek_v41_four_bit_rows(), 1, 2, 1);
  rows[512 + 32] = rows[512 + 511] = 0.0F;
  ASSERT_TRUE(encode_rows(tensor(rows.data(), {1, 2, 1, 512}), four.view, deepseek_v41_four_bit_rows()).ok());
  EXPECT_EQ(four.page(0)[256 + 8], 0x79);       // 6 in the high half, -0.5 in the low
  EXPECT_EQ(four.page(0)[512 + 32 + 1], 0x3C);  // 1.5 in e4m3
  EXPECT_EQ(four.page(0)[512 + 32 + 2], 0x01);  // the least scale, of zeros
}

TEST(RowFormat, EveryFloat8IsRead) {
  const RowFormat format{.parts = {RowPart{.element = RowElement::float8_e4m3, .columns = 256}},
                         .part_count = 1,
                         .row_bytes = 256,
                         .alignment = 1};
  std::vector<std::uint8_t> row(256);
  for (unsigned i = 0; i < 256; ++i) row[i] = static_cast<std::uint8_t>(i);
  std::vector<float> columns(256);
  ASSERT_TRUE(decode_rows(tensor(row.data(), {1, 1, 1, 256}), tensor(columns.data(), {1, 1, 1, 256}), format).ok());
  for (unsigned i = 0; i < 256; ++i) {
    const float expected = to_float(float8_e4m3{static_cast<std::uint8_t>(i)});
    EXPECT_TRUE(columns[i] == expected || (std::isnan(columns[i]) && std::isnan(expected))) << i;
    EXPECT_EQ(std::signbit(columns[i]), std::signbit(expected)) << i;
  }
}

TEST(RowFormat, IsDescribed) {
  EXPECT_EQ(describe_row_format(deepseek_v4_rows()),
            "512 columns in 584 bytes: 448 float8_e4m3 at 0, float8_e8m0 scales of 64 at 576; 64 bfloat16 at 448; the "
            "last 8 bytes behind the page's rows; V is the first 512 columns");
  EXPECT_EQ(describe_row_format({}), "not a valid row format");
}

struct Misuse {
  std::string name;
  std::function<void(RowFormat&)> make;
  std::string message;
};

class RowFormatMisuse : public testing::TestWithParam<Misuse> {};

TEST_P(RowFormatMisuse, IsReported) {
  RowFormat format = deepseek_v4_rows();
  GetParam().make(format);
  const Status status = check_row_format(format);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message(), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    All, RowFormatMisuse,
    testing::ValuesIn(std::vector<Misuse>{
        {"NoPart", [](RowFormat& f) { f.part_count = 0; }, "part_count is 0: it must be from 1 to 4"},
        {"TooManyParts", [](RowFormat& f) { f.part_count = 5; }, "part_count is 5: it must be from 1 to 4"},
        {"NoBytes", [](RowFormat& f) { f.row_bytes = 0; }, "row_bytes is 0: it must be from 1 to 3328"},
        {"AllTail", [](RowFormat& f) { f.tail_bytes = 584; },
         "tail_bytes is 584: it must be 0 or more and less than row_bytes, which is 584"},
        {"OddTail", [](RowFormat& f) { f.row_bytes = 583, f.tail_bytes = 7; },
         "tail_bytes is 7: it must be a multiple of the 2 bytes of the format's longest element or scale"},
        {"Alignment", [](RowFormat& f) { f.alignment = 24; }, "alignment is 24: it must be a power of 2 from 1 to 256"},
        {"RowsOffAlignment", [](RowFormat& f) { f.alignment = 128; },
         "rows of 576 bytes follow one another: it must be a multiple of the alignment, which is 128"},
        {"AlignmentOfElements", [](RowFormat& f) { f.alignment = 1; },
         "alignment is 1: the format's longest element or scale has 2 bytes"},
        {"NoSuchElement", [](RowFormat& f) { f.parts[0].element = static_cast<RowElement>(9); },
         "parts[0] has element 9 and scale 3: there are no such numbers of RowElement or RowScale"},
        {"NoColumns", [](RowFormat& f) { f.parts[1].columns = 0; },
         "parts[1] has 0 columns: it must have from 1 to 576"},
        {"TooManyColumns",
         [](RowFormat& f) {
           f.parts[0].columns = 576;
           f.parts[1].offset = 576;
           f.parts[0].scale_offset = 704;
           f.row_bytes = 720;
           f.tail_bytes = 16;
         },
         "the parts have 640 columns: a row has from 1 to 576"},
        {"NoScales", [](RowFormat& f) { f.parts[0].element = RowElement::int8, f.parts[0].scale = RowScale::none; },
         "parts[0] is int8 without scales: int8, int4 and float4_e2m1 need them"},
        {"ScalesOf16Bits", [](RowFormat& f) { f.parts[1].scale = RowScale::float32; },
         "parts[1] is bfloat16 with scales: elements of 16 and 32 bits have none"},
        {"OddNibbles", [](RowFormat& f) { f.parts[0].element = RowElement::int4, f.parts[0].columns = 447; },
         "parts[0] has 447 columns of int4: it must have an even number, two to a byte"},
        {"NoScaleColumns", [](RowFormat& f) { f.parts[0].scale_columns = 0; },
         "parts[0].scale_columns is 0: it must be from 1 to the part's columns, which are 448"},
        {"Overlap", [](RowFormat& f) { f.parts[1].offset = 446; },
         "the columns of parts[1] take bytes 446 to 574 and the columns of parts[0] 0 to 448: they must not overlap"},
        {"BeyondTheRow", [](RowFormat& f) { f.parts[0].scale_offset = 580; },
         "the scales of parts[0] take bytes 580 to 587 of a row of 584"},
        {"AcrossTheTail", [](RowFormat& f) { f.parts[0].scale_offset = 572; },
         "the scales of parts[0] take bytes 572 to 579, and the row's tail begins at 576: what a part has must be on "
         "one side of it"},
        {"OffItsElements", [](RowFormat& f) { f.parts[1].offset = 447; },
         "the columns of parts[1] begin at byte 447: it must be a multiple of their 2 bytes"},
        {"WideV", [](RowFormat& f) { f.head_dim_v = 513; },
         "head_dim_v is 513: it must be from 0 to the columns of the row, which are 512"},
    }),
    [](const auto& one) { return one.param.name; });

/// A call of encode_rows that is wrong writes nothing.
TEST(RowFormat, CallsThatContradictThemselvesWriteNothing) {
  const RowFormat format = deepseek_v4_rows();
  std::vector<float> rows(1024, 1.0F);
  Cache cache(format, 1, 2, 1);
  const std::vector<std::uint8_t> before = cache.bytes;
  const TensorView good = tensor(rows.data(), {1, 2, 1, 512});
  const auto expect = [&](const ConstTensorView& from, const TensorView& to, const RowFormat& f, const char* message) {
    const Status status = encode_rows(from, to, f);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.message(), message);
    EXPECT_EQ(cache.bytes, before);
  };
  TensorView other = good;
  other.shape[3] = 511;
  expect(other, cache.view, format,
         "rows has shape [1, 2, 1, 511]: it must be [1, 2, 1, 512] [num_pages, page_size, heads_kv, columns]");
  other = good;
  other.dtype = DType::int32;
  expect(other, cache.view, format, "rows is int32: it must be float32, float16 or bfloat16");
  TensorView to = cache.view;
  to.shape[3] = 656;
  expect(good, to, format, "cache has rows of 656 bytes: the format has 584");
  to = cache.view;
  to.dtype = DType::int8;
  expect(good, to, format, "cache is int8: it must be uint8: its rows have a format");
  to = cache.view;
  to.strides[1] = 592;
  expect(good, to, format, "cache has stride 592 on axis 1: with tails rows must follow one another, 584 bytes apart");
  to = cache.view;
  to.data = static_cast<std::uint8_t*>(to.data) + 8;
  expect(good, to, format, "cache's pointer must be aligned to 16 bytes, as the format's rows are");
  expect(good, {}, format, "cache is missing: give a tensor [num_pages, page_size, heads_kv, row_bytes]");
  expect(good, cache.view, {}, "format: part_count is 0: it must be from 1 to 4");
  int stream = 0;
  EXPECT_EQ(encode_rows(good, cache.view, format, {.stream = &stream}).code(), StatusCode::invalid_argument);
  EXPECT_EQ(cache.bytes, before);
}

}  // namespace
}  // namespace strobe::test
