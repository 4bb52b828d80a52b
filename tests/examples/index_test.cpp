// SPDX-License-Identifier: Apache-2.0
#include "index.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace sentence_search {
namespace {

TEST(Index, GivesTheNearestPassagesFirst) {
  Index index;
  index.passages = {7, 3, 5};
  index.embeddings = {1.0F, 0.0F, 0.0F, 1.0F, 0.6F, 0.8F};
  const std::vector<Hit> hits = index.nearest({0.8F, 0.6F}, 2);
  ASSERT_EQ(hits.size(), 2U);
  EXPECT_EQ(hits[0].passage, 5U);
  EXPECT_FLOAT_EQ(hits[0].score, 0.96F);
  EXPECT_EQ(hits[1].passage, 7U);
  EXPECT_FLOAT_EQ(hits[1].score, 0.8F);
  EXPECT_EQ(index.nearest({1.0F, 0.0F}, 10).size(), 3U);
  EXPECT_TRUE(Index().nearest({1.0F, 0.0F}, 10).empty());
}

TEST(EncodingOrder, VisitsEveryPassageOnceAndSpreadsTheFirst) {
  for (const std::size_t count : {1U, 2U, 3U, 10U, 1000U, 31102U}) {
    std::vector<bool> visited(count, false);
    for (std::size_t i = 0; i < count; ++i) visited[encoding_order(i, count)] = true;
    EXPECT_EQ(visited, std::vector<bool>(count, true)) << count;
  }
  // The first tenth of the visits has about a tenth of every quarter of the text.
  std::vector<int> quarters(4, 0);
  for (std::size_t i = 0; i < 3110; ++i) ++quarters[encoding_order(i, 31102) * 4 / 31102];
  for (const int visits : quarters) EXPECT_NEAR(visits, 3110 / 4.0, 5.0);
}

}  // namespace
}  // namespace sentence_search
