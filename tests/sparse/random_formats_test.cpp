// SPDX-License-Identifier: Apache-2.0
// A new format is a value: formats that seeds make up are written, read, appended to and attended over as the
// ready-made ones are, against the float64 reference's reading of their bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "attention/seeds.h"
#include "call/row_format.h"
#include "random_format.h"
#include "reference/sparse.h"
#include "sparse_case.h"

namespace strobe::test {
namespace {

/// Bytes at a multiple of 256.
class Bytes {
 public:
  explicit Bytes(std::int64_t count) : memory_(static_cast<std::size_t>(count) + 256, 0xA5) {}
  std::uint8_t* data() { return memory_.data() + (256 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 256) % 256; }

 private:
  std::vector<std::uint8_t> memory_;
};

/// The bytes of a row, its tail last.
std::vector<std::byte> bytes_of(const TensorView& cache, const RowFormat& format, std::int64_t page, std::int64_t row,
                                std::int64_t head) {
  const FormattedRows rows(cache, format);
  const RowBytes<std::byte> at = rows.at(page, row, head);
  std::vector<std::byte> bytes(at.body, at.body + format.row_bytes - format.tail_bytes);
  if (format.tail_bytes > 0) bytes.insert(bytes.end(), at.tail, at.tail + format.tail_bytes);
  return bytes;
}

constexpr std::int64_t kPagesOfRows = 2;
constexpr std::int64_t kPageRows = 3;
constexpr std::int64_t kHeadsOfRows = 2;

TEST(RandomFormats, AreReadAsTheReferenceReadsThem) {
  for (const std::uint64_t seed : chosen_seeds(300)) {
    Random random(seed);
    const auto columns = static_cast<std::int32_t>(random.one_of<std::int64_t>({1, 6, 40, 64, 130, 512, 576}));
    const RowFormat format = random_format(random, columns, 0);
    SCOPED_TRACE("STROBE_SEED=" + std::to_string(seed) + ": " + describe_row_format(format));
    const Status valid = check_row_format(format);
    ASSERT_TRUE(valid.ok()) << valid.message();
    ASSERT_EQ(format.columns(), columns);
    std::vector<float> rows(static_cast<std::size_t>(kPagesOfRows * kPageRows * kHeadsOfRows * columns));
    for (float& x : rows) x = static_cast<float>(random.normal());
    Bytes bytes(kPagesOfRows * 256 + kPagesOfRows * kPageRows * kHeadsOfRows * (format.row_bytes + 256));
    TensorView cache = tensor(bytes.data(), {kPagesOfRows, kPageRows, kHeadsOfRows, format.row_bytes});
    cache.strides[0] = (cache.strides[0] + 255) / 256 * 256;
    const std::initializer_list<std::int64_t> shape = {kPagesOfRows, kPageRows, kHeadsOfRows, columns};
    ASSERT_TRUE(encode_rows(tensor(rows.data(), shape), cache, format).ok());
    std::vector<float> decoded(rows.size());
    ASSERT_TRUE(decode_rows(cache, tensor(decoded.data(), shape), format).ok());
    double worst = 0.0;
    for (std::int64_t flat = 0; flat < kPagesOfRows * kPageRows * kHeadsOfRows; ++flat) {
      const std::vector<float> expected =
          reference::decode_row(format, bytes_of(cache, format, flat / (kPageRows * kHeadsOfRows),
                                                 flat / kHeadsOfRows % kPageRows, flat % kHeadsOfRows));
      const float* const own = decoded.data() + flat * columns;
      ASSERT_EQ(std::memcmp(own, expected.data(), expected.size() * sizeof(float)), 0) << "row " << flat;
      for (std::int64_t c = 0; c < columns; ++c) {
        worst = std::max<double>(worst, std::fabs(own[c] - rows[static_cast<std::size_t>(flat * columns + c)]));
      }
    }
    // A scale is at most twice what is needed, and int4 steps by a seventh of the largest: so wrong bytes would show.
    EXPECT_LT(worst, 1.2) << "rows of normal numbers come back";
  }
}

/// append_rows() writes the bytes of encode_rows().
TEST(RandomFormats, AreAppendedAsTheyAreEncoded) {
  for (const std::uint64_t seed : chosen_seeds(60)) {
    Random random(seed);
    const RowFormat format = random_format(random, 48, 48);
    SCOPED_TRACE("STROBE_SEED=" + std::to_string(seed) + ": " + describe_row_format(format));
    std::vector<float> rows(static_cast<std::size_t>(kPageRows * kHeadsOfRows * 48));
    for (float& x : rows) x = static_cast<float>(random.normal());
    const std::int64_t page = kPageRows * kHeadsOfRows * format.row_bytes;
    Bytes encoded_bytes(page);
    Bytes appended_bytes(page);
    const TensorView encoded = tensor(encoded_bytes.data(), {1, kPageRows, kHeadsOfRows, format.row_bytes});
    const TensorView appended = tensor(appended_bytes.data(), {1, kPageRows, kHeadsOfRows, format.row_bytes});
    ASSERT_TRUE(encode_rows(tensor(rows.data(), {1, kPageRows, kHeadsOfRows, 48}), encoded, format).ok());
    std::vector<std::int32_t> length = {0};
    AppendRowsArguments append;
    append.cache = appended;
    append.rows = tensor(rows.data(), {1, 1, kHeadsOfRows, 48});
    append.cache_seqlens = tensor(length.data(), {1});
    for (; length[0] < kPageRows; ++length[0]) {
      append.rows.data = rows.data() + length[0] * kHeadsOfRows * 48;
      const Status status = append_rows(append, format);
      ASSERT_TRUE(status.ok()) << status.message();
    }
    EXPECT_EQ(std::memcmp(encoded.data, appended.data, static_cast<std::size_t>(page)), 0);
  }
}

/// Attention over them, V being part of K or apart, in every layout.
TEST(RandomFormats, AreAttendedOver) {
  for (const std::uint64_t seed : chosen_seeds(120)) {
    SparseShape shape = random_shape(seed);
    Random random(seed + 5'000'000);
    for (SourceShape& s : shape.sources) {
      const auto columns = static_cast<std::int32_t>(shape.head_dim);
      const auto columns_of_v = static_cast<std::int32_t>(shape.head_dim_v);
      s.k_format = random_format(random, columns, s.v_apart ? 0 : columns_of_v);
      s.v_format = s.v_apart && random.chance(0.7) ? random_format(random, columns_of_v, 0) : RowFormat{};
    }
    SparseCase one(shape, seed);
    SCOPED_TRACE("STROBE_SEED=" + std::to_string(seed) + ": " + describe(one.shape));
    const Status status = sparse_forward(one.arguments(), one.shape.options);
    ASSERT_TRUE(status.ok()) << status.message();
    const reference::SparseForwardResult expected = reference::sparse_forward(one.arguments(), one.shape.options);
    const reference::WorstElement worst = reference::worst_element(one.o.view(), expected.o);
    EXPECT_LE(worst.ratio, 1.0) << reference::describe(worst, one.o.view());
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace strobe::test
