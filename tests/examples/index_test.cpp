// SPDX-License-Identifier: Apache-2.0
#include "index.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <vector>

#include "io/npy.h"

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

TEST(Index, ReadsWhatWasEncodedBefore) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "embeddings.npy";
  const std::vector<float> rows = {1.0F, 0.0F, 0.6F, 0.8F, 0.0F, -1.0F};
  strobe::io::HostTensor tensor = strobe::io::make_tensor(strobe::DType::float32, {3, 2});
  std::memcpy(tensor.bytes.data(), rows.data(), tensor.bytes.size());
  ASSERT_TRUE(strobe::io::write_npy(file, tensor).ok());
  const strobe::Result<Index> index = load_index(file, 3, 2);
  ASSERT_TRUE(index.ok()) << index.status().message();
  EXPECT_EQ(index->embeddings, rows);
  EXPECT_EQ(index->nearest({0.8F, 0.6F}, 1).front().passage, 1U);
  const strobe::Status status = load_index(file, 4, 2).status();
  EXPECT_NE(status.message().find("holds float32 [3, 2]; embeddings of this text are float32 [4, 2]"),
            std::string::npos)
      << status.message();
  std::filesystem::remove(file);
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
