// SPDX-License-Identifier: Apache-2.0
// Intervals of visible keys against the definition, pair by pair.
#include "call/visible_keys.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "random.h"

namespace strobe::test {
namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

/// As include/strobe/attention.h defines it.
bool sees(const AttentionProblem& problem, std::int64_t query, std::int64_t key) {
  const std::int64_t center =
      query + (problem.causal == CausalMask::top_left ? 0 : problem.seqlen_k - problem.seqlen_q);
  const auto chunk_of = [&](std::int64_t at) {
    return std::floor(static_cast<double>(at) / static_cast<double>(problem.chunk));
  };
  if (problem.causal != CausalMask::none && key > center) return false;
  if (problem.window.left >= 0 && center - key > problem.window.left) return false;
  if (problem.window.right >= 0 && key - center > problem.window.right) return false;
  return problem.chunk == 0 || chunk_of(key) == chunk_of(center);
}

AttentionProblem random_problem(std::uint64_t seed) {
  Random random(seed);
  AttentionProblem problem;
  problem.seqlen_q = random.integer(0, 12);
  problem.seqlen_k = random.integer(0, 12);
  problem.causal = random.one_of({CausalMask::none, CausalMask::bottom_right, CausalMask::top_left});
  if (random.chance(0.5)) problem.window.left = random.chance(0.2) ? kLargest : random.integer(0, 6);
  if (random.chance(0.5)) problem.window.right = random.chance(0.2) ? kLargest : random.integer(0, 6);
  if (random.chance(0.3)) problem.chunk = random.chance(0.2) ? kLargest : random.integer(1, 7);
  return problem;
}

TEST(VisibleKeys, AreTheKeysOfTheDefinitionFromBothSides) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    const AttentionProblem problem = random_problem(seed);
    const VisibleKeys visible = visible_keys(problem);
    for (std::int64_t query = 0; query < problem.seqlen_q; ++query) {
      for (std::int64_t key = 0; key < problem.seqlen_k; ++key) {
        const bool expected = sees(problem, query, key);
        EXPECT_EQ(key >= visible.begin(query) && key < visible.end(query), expected) << seed;
        const std::int64_t first = visible.first_position(key, problem.seqlen_q);
        const std::int64_t last = visible.last_position(key, problem.seqlen_q);
        EXPECT_EQ(query >= first && query < last, expected) << seed;
        const std::int64_t center = query + visible.diagonal;
        EXPECT_TRUE(expected || visible.bounded_left() || key >= center) << seed;
        EXPECT_TRUE(expected || visible.bounded_right() || key <= center) << seed;
      }
    }
  }
}

TEST(VisibleKeys, KnowWhichSidesAreBounded) {
  const auto bounds = [](CausalMask causal, Window window, std::int64_t chunk) {
    AttentionProblem problem;
    problem.causal = causal;
    problem.window = window;
    problem.chunk = chunk;
    const VisibleKeys visible = visible_keys(problem, 5, 7);
    return std::pair(visible.bounded_left(), visible.bounded_right());
  };
  EXPECT_EQ(bounds(CausalMask::none, {}, 0), std::pair(false, false));
  EXPECT_EQ(bounds(CausalMask::none, {kLargest, kLargest}, 0), std::pair(false, false));
  EXPECT_EQ(bounds(CausalMask::bottom_right, {}, 0), std::pair(false, true));
  EXPECT_EQ(bounds(CausalMask::top_left, {3, -1}, 0), std::pair(true, true));
  EXPECT_EQ(bounds(CausalMask::none, {3, -1}, 0), std::pair(true, false));
  EXPECT_EQ(bounds(CausalMask::none, {}, 4), std::pair(true, true));
}

}  // namespace
}  // namespace strobe::test
