// SPDX-License-Identifier: Apache-2.0
#include "runtime/archive.h"

#include <gtest/gtest.h>

namespace strobe::runtime {
namespace {

const std::string kZeros("with\0zero", 9);

std::string example() { return make_archive({{"b.h", "second"}, {"a.h", "first"}, {"empty", ""}, {"zeros", kZeros}}); }

TEST(Archive, GivesBackWhatWentIn) {
  const std::string bytes = example();
  const Result<Archive> archive = Archive::parse_untrusted(bytes);
  ASSERT_TRUE(archive.ok()) << archive.status().message();
  EXPECT_EQ(archive->entries().size(), 4U);
  EXPECT_EQ(archive->find("a.h"), "first");
  EXPECT_EQ(archive->find("b.h"), "second");
  EXPECT_EQ(archive->find("empty"), "");
  EXPECT_EQ(archive->find("zeros"), kZeros);
  EXPECT_EQ(archive->find("c.h"), std::nullopt);
}

TEST(Archive, EndsEveryStringWithAZero) {
  const std::string bytes = example();
  const Result<Archive> archive = Archive::parse(bytes);
  ASSERT_TRUE(archive.ok());
  for (const Archive::Entry& entry : archive->entries()) {
    EXPECT_EQ(*entry.name.end(), '\0');
    EXPECT_EQ(*entry.content.end(), '\0');
  }
}

TEST(Archive, HasTheSameBytesWhateverTheOrder) {
  EXPECT_EQ(make_archive({{"a", "1"}, {"b", "2"}}), make_archive({{"b", "2"}, {"a", "1"}}));
}

TEST(Archive, RejectsEveryTruncation) {
  const std::string bytes = example();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(Archive::parse(std::string_view(bytes).substr(0, size)).ok()) << size;
    EXPECT_FALSE(Archive::parse_untrusted(std::string_view(bytes).substr(0, size)).ok()) << size;
  }
}

TEST(Archive, RejectsEveryFlippedBitOfUntrustedBytes) {
  const std::string bytes = example();
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(Archive::parse_untrusted(damaged).ok()) << bit;
    static_cast<void>(Archive::parse(damaged));  // any answer will do, as long as it reads nothing outside the bytes
  }
}

TEST(Archive, RejectsWhatFollowsTheEnd) { EXPECT_FALSE(Archive::parse(example() + "x").ok()); }

}  // namespace
}  // namespace strobe::runtime
