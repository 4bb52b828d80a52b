// SPDX-License-Identifier: Apache-2.0
#include "passages.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace sentence_search {
namespace {

TEST(Passages, BibleHasEveryVerse) {
  const auto verses = read_bible();
  ASSERT_TRUE(verses.ok()) << verses.status().message();
  ASSERT_EQ(verses->size(), 31102U);
  EXPECT_EQ(verses->front().reference, "Ge1:1");
  EXPECT_EQ(verses->front().text, "In the beginning God created the heaven and the earth.");
  EXPECT_EQ(verses->back().reference, "Rev22:21");
}

TEST(Passages, LinesKeepTheirNumbers) {
  const auto path = std::filesystem::path(testing::TempDir()) / fmt::format("passages-{}.txt", ::getpid());
  std::ofstream(path) << "one\n\n \t\ntwo words\r\nlast";
  const auto lines = read_lines(path);
  ASSERT_TRUE(lines.ok()) << lines.status().message();
  ASSERT_EQ(lines->size(), 3U);
  EXPECT_EQ((*lines)[1].reference, "4");
  EXPECT_EQ((*lines)[1].text, "two words");
  EXPECT_EQ((*lines)[2].text, "last");

  std::ofstream(path) << "\n \n";
  EXPECT_EQ(read_lines(path).status().message(), fmt::format("'{}' holds no text", path.string()));
  std::filesystem::remove(path);
  EXPECT_EQ(read_lines(path).status().message(), fmt::format("'{}' cannot be read", path.string()));
}

}  // namespace
}  // namespace sentence_search
