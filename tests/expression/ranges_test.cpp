// SPDX-License-Identifier: Apache-2.0
// Intervals over tiles hold every value in them, and tell what masks leave empty or full.
#include "expression/ranges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "expression/position_mask.h"
#include "random_text.h"

namespace strobe::test {
namespace {

using expression::Range;
using expression::TileRanges;
using expression::Variable;

Range range_over(const std::string& mask, const TileRanges& tile) {
  const auto formula = expression::Formula::parse("", mask, captures());
  EXPECT_TRUE(formula.ok()) << mask << ": " << formula.status().message();
  if (!formula.ok()) return {};
  const auto ids = expression::reachable((*formula)->graph(), std::array{(*formula)->mask()});
  return expression::range_of((*formula)->graph(), ids, (*formula)->mask(), tile);
}

TileRanges tile_of(Range q, Range k) {
  TileRanges tile;
  tile.variables[static_cast<std::size_t>(Variable::q)] = q;
  tile.variables[static_cast<std::size_t>(Variable::k)] = k;
  tile.variables[static_cast<std::size_t>(Variable::q_len)] = {32, 32};
  tile.variables[static_cast<std::size_t>(Variable::k_len)] = {32, 32};
  return tile;
}

bool is_empty(const Range& range) { return range.high == 0; }
bool is_full(const Range& range) { return range.low == 1; }

TEST(Ranges, HoldEveryValueOfRandomMasks) {
  int decided = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    const std::string mask = random_boolean(random, 4);
    const auto formula = expression::Formula::parse("", mask, captures());
    ASSERT_TRUE(formula.ok()) << mask;
    expression::Point point = random_point(random);
    const auto low = [&] { return random.integer(0, 24); };
    const Range q{low(), low() + 7};
    const Range k{low(), low() + 7};
    TileRanges tile =
        tile_of({std::min(q.low, q.high), std::max(q.low, q.high)}, {std::min(k.low, k.high), std::max(k.low, k.high)});
    for (const Variable variable : {Variable::head, Variable::head_kv, Variable::batch}) {
      const auto at = static_cast<std::size_t>(variable);
      tile.variables[at] = expression::just(static_cast<long long>(point.variables[at]));
    }
    const Range range = range_over(mask, tile);
    if (range.low == range.high) ++decided;
    for (int i = 0; i < 40; ++i) {
      const auto within = [&](Variable variable) {
        const Range& of = tile.variables[static_cast<std::size_t>(variable)];
        point.variables[static_cast<std::size_t>(variable)] = static_cast<double>(random.integer(of.low, of.high));
      };
      within(Variable::q);
      within(Variable::k);
      const bool shown = mask_at(**formula, point);
      ASSERT_TRUE(shown ? range.high == 1 : range.low == 0)
          << mask << " at q " << point.variables[1] << " k " << point.variables[2];
    }
  }
  EXPECT_GT(decided, 300);
}

TEST(Ranges, DecideTilesOfUsualMasks) {
  const TileRanges below = tile_of({64, 127}, {0, 63});
  const TileRanges diagonal = tile_of({64, 127}, {64, 127});
  const TileRanges above = tile_of({0, 63}, {64, 127});
  EXPECT_TRUE(is_full(range_over("k <= q", below)));
  EXPECT_TRUE(is_empty(range_over("k <= q", above)));
  EXPECT_FALSE(is_full(range_over("k <= q", diagonal)) || is_empty(range_over("k <= q", diagonal)));
  EXPECT_TRUE(is_empty(range_over("k <= q && q - k < 10", tile_of({640, 703}, {0, 63}))));
  EXPECT_TRUE(is_full(range_over("k < 100 || k <= q", tile_of({0, 63}, {0, 63}))));
  EXPECT_TRUE(is_empty(range_over("q / 64 == k / 64", below)));
  EXPECT_TRUE(is_full(range_over("q / 64 == k / 64", diagonal)));
}

TEST(Ranges, LookAtWhatIntegerCapturesHold) {
  TileRanges tile = tile_of({0, 63}, {64, 127});
  tile.load = [](int, std::span<const Range> indices) { return expression::just(indices[0].low / 64); };
  EXPECT_TRUE(is_empty(range_over("index[q] == index[k]", tile)));
  tile.load = [](int, std::span<const Range>) { return expression::just(5); };
  EXPECT_TRUE(is_full(range_over("index[q] == index[k]", tile)));
}

std::shared_ptr<const expression::Formula> formula_of(const std::string& mask) {
  const auto formula = expression::Formula::parse("", mask, captures());
  EXPECT_TRUE(formula.ok()) << mask << ": " << formula.status().message();
  return formula.ok() ? *formula : nullptr;
}

TEST(PositionMasks, HaveAsManyBlocksAsBlockByBlock) {
  constexpr std::int64_t kQueries = 300, kKeys = 500, kBlock = 32;
  for (const char* const mask : {"k <= q", "k <= q + k_len - q_len && q - k < 100", "q / 64 == k / 96",
                                 "(q - k) % 4 == 0", "k < 40 || k <= q", "true", "q < 0"}) {
    const expression::MaskRange range = expression::position_mask(formula_of(mask), kQueries, kKeys);
    ASSERT_TRUE(range) << mask;
    expression::BlockCounts wanted;
    for (std::int64_t q = 0; q < kQueries; q += kBlock) {
      for (std::int64_t k = 0; k < kKeys; k += kBlock) {
        const Range one = range({q, std::min(q + kBlock, kQueries) - 1}, {k, std::min(k + kBlock, kKeys) - 1});
        ++(is_empty(one) ? wanted.empty : is_full(one) ? wanted.full : wanted.partial);
      }
    }
    const auto counts = expression::count_blocks(range, kQueries, kKeys, kBlock);
    ASSERT_TRUE(counts) << mask;
    EXPECT_EQ(counts->empty, wanted.empty) << mask;
    EXPECT_EQ(counts->full, wanted.full) << mask;
    EXPECT_EQ(counts->partial, wanted.partial) << mask;
  }
}

TEST(PositionMasks, AreCountedWithinALimit) {
  constexpr std::int64_t kLong = 1 << 20;
  const auto counted = [](const char* mask, std::int64_t length) {
    return expression::count_blocks(expression::position_mask(formula_of(mask), length, length), length, length, 128);
  };
  EXPECT_EQ(counted("k <= q", kLong)->partial, kLong / 128);
  EXPECT_EQ(counted("k <= q", 0)->partial, 0);
  EXPECT_FALSE(counted("(q - k) % 3 == 0", kLong));
  EXPECT_FALSE(counted("k <= q", std::int64_t{1} << 40));
  for (const char* const other : {"index[k] == 0", "k <= q + head", "batch == 0"}) {
    EXPECT_FALSE(expression::position_mask(formula_of(other), 64, 64)) << other;
  }
}

TEST(Ranges, OfWhatWrapsAroundAreUnknown) {
  const Range range = range_over("q * 50000 * 50000 < 0", tile_of({0, 63}, {0, 63}));
  EXPECT_FALSE(is_empty(range) || is_full(range));
}

}  // namespace
}  // namespace strobe::test
