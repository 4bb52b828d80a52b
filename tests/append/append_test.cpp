// SPDX-License-Identifier: Apache-2.0
// strobe::append on the CPU against float64.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "append_case.h"

namespace strobe::test {
namespace {

Placement placement_of(Random& random) {
  return {.layout = random.one_of({Layout::contiguous, Layout::padded, Layout::transposed, Layout::scrambled}),
          .guard = Guard::bytes,
          .alignment = 1};
}

TEST(Append, MatchesFloat64) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    const AppendShape shape = AppendShape::random(random);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + shape.text());
    const AppendCase one(shape, placement_of(random), seed);
    const Status status = append(one.arguments());
    ASSERT_TRUE(status.ok()) << status.message();
    one.expect_appended();
    if (HasFailure()) return;
  }
}

TEST(Append, GivesTheSameBitsForAnyNumberOfThreads) {
  AppendShape shape;
  shape.batch = 8;
  shape.heads_kv = 8;
  shape.head_dim = shape.head_dim_v = 128;
  shape.capacity = 60;
  shape.most_new = 60;
  shape.page_size = 16;
  shape.rotary_dim = 96;
  shape.packed = shape.queries = true;
  shape.source = DType::bfloat16;
  for (const DType cache : {DType::bfloat16, DType::float8_e4m3}) {
    shape.cache = cache;
    const AppendCase one(shape, {}, 5);
    const AppendCase other(shape, {}, 5);
    ASSERT_TRUE(append(one.arguments(), {.threads = 1}).ok());
    ASSERT_TRUE(append(other.arguments(), {.threads = 4}).ok());
    EXPECT_TRUE(one.output_bytes() == other.output_bytes());
  }
}

/// One row of one head into a cache of 8 bits, with scales of one half.
template <class Element>
std::vector<Element> stored_row(const std::vector<float>& values) {
  const auto columns = static_cast<std::int64_t>(values.size());
  std::vector<Element> k(values.size());
  std::vector<Element> v(values.size());
  const std::int32_t length = 0;
  const float half = 0.5F;
  AppendArguments a;
  a.k_cache = tensor(k.data(), {1, 1, 1, columns});
  a.v_cache = tensor(v.data(), {1, 1, 1, columns});
  a.k_new = a.v_new = tensor(values.data(), {1, 1, 1, columns});
  a.cache_seqlens = tensor(&length, {1});
  a.k_descale = a.v_descale = tensor(&half, {1, 1, 1});
  const Status status = append(a);
  EXPECT_TRUE(status.ok()) << status.message();
  return k;
}

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Append, RoundsToInt8) {
  const std::vector<float> values{0.0F, 0.25F, 0.75F, -0.25F, -1.0F, 63.5F, 63.7F, 1e30F, -1e30F, kInf, -kInf, NAN};
  const std::vector<int> wanted{0, 0, 2, 0, -2, 127, 127, 127, -127, 127, -127, 0};
  const std::vector<std::int8_t> got = stored_row<std::int8_t>(values);
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(got[i], wanted[i]) << values[i];
}

TEST(Append, RoundsToFloat8AsTheScalarConversion) {
  std::vector<float> values{0.0F, -0.0F, 224.0F, 231.0F, 232.0F, 300.0F, -1e30F, kInf, -kInf, NAN, -NAN};
  // Every e4m3 number, the middles between neighbours, and one bit to either side of those.
  for (int bits = 0; bits < 0x7E; ++bits) {
    const float number = to_float(float8_e4m3{static_cast<std::uint8_t>(bits)}) / 2.0F;
    const float next = to_float(float8_e4m3{static_cast<std::uint8_t>(bits + 1)}) / 2.0F;
    const float middle = (number + next) / 2.0F;
    for (const float value : {number, middle, std::nextafter(middle, 0.0F), std::nextafter(middle, kInf)}) {
      values.push_back(bits % 2 == 0 ? value : -value);
    }
    if (values.size() < 500 && bits + 1 < 0x7E) continue;
    const std::vector<float8_e4m3> got = stored_row<float8_e4m3>(values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(got[i].bits, to_float8_e4m3(values[i] * 2.0F).bits) << values[i];
    }
    values.clear();
  }
}

TEST(Append, KeepsTheBitsOfWhatItCopies) {
  // A signalling NaN: a conversion would change it.
  const std::uint32_t bits = 0x7FA12345U;
  const std::vector<float> row(3, std::bit_cast<float>(bits));
  std::vector<float> k(6);
  std::vector<float> v(6);
  const std::int32_t length = 1;
  AppendArguments a;
  a.k_cache = tensor(k.data(), {1, 2, 1, 3});
  a.v_cache = tensor(v.data(), {1, 2, 1, 3});
  a.k_new = a.v_new = tensor(row.data(), {1, 1, 1, 3});
  a.cache_seqlens = tensor(&length, {1});
  ASSERT_TRUE(append(a).ok());
  EXPECT_EQ(std::bit_cast<std::uint32_t>(k[3]), bits);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(v[5]), bits);
  EXPECT_EQ(k[2], 0.0F);
}

}  // namespace
}  // namespace strobe::test
