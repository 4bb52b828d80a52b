// SPDX-License-Identifier: Apache-2.0
#include "io/wrap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace strobe::io {
namespace {

TEST(Wrap, BreaksBetweenWords) {
  EXPECT_EQ(wrapped("one two three four", 9), "one two\nthree\nfour");
  EXPECT_EQ(wrapped("one two\nthree\n\nfour\n", 9), "one two\nthree\n\nfour\n");
  EXPECT_EQ(wrapped("", 9), "");
  EXPECT_EQ(wrapped("123456789", 9), "123456789");
  EXPECT_EQ(wrapped("12345 789 x", 9), "12345 789\nx");
}

TEST(Wrap, IndentsToTheLastColumn) {
  EXPECT_EQ(wrapped("  --flag N    what it does to the call", 30),
            "  --flag N    what it does to\n              the call");
  EXPECT_EQ(wrapped("  below its first word", 14), "  below its\n  first word");
  EXPECT_EQ(wrapped("label text that goes on", 16, 6), "label text that\n      goes on");
}

TEST(Wrap, LeavesLongWordsWhole) {
  EXPECT_EQ(wrapped("a 0123456789 b", 6), "a\n0123456789\nb");
  EXPECT_EQ(wrapped("0123456789", 6), "0123456789");
  EXPECT_EQ(wrapped("  x  0123456789", 6), "  x\n  0123456789");
}

/// Whatever the text: the same words in the same order, and no line too long that could be broken.
TEST(Wrap, KeepsEveryWord) {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    std::mt19937 generator(seed);
    const auto below = [&](unsigned count) { return static_cast<std::size_t>(generator() % count); };
    std::string text(below(4), ' ');
    for (std::size_t word = below(12); word > 0; --word) {
      text += std::string(1 + below(9), static_cast<char>('a' + below(26))) + std::string(1 + below(3), ' ');
    }
    const std::size_t columns = 8 + below(30);
    const std::string result = wrapped(text, columns);
    const auto words = [](const std::string& of) {
      std::istringstream stream(of);
      return std::vector<std::string>{std::istream_iterator<std::string>(stream), {}};
    };
    EXPECT_EQ(words(result), words(text)) << text;
    std::istringstream lines(result);
    for (std::string line; std::getline(lines, line);) {
      const std::string trimmed = line.substr(0, line.find_last_not_of(' ') + 1);
      if (words(line).size() > 2) {
        EXPECT_LE(trimmed.size(), columns) << '\'' << text << "' in " << columns;
      }
    }
  }
}

}  // namespace
}  // namespace strobe::io
