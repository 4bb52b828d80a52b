// SPDX-License-Identifier: Apache-2.0
#include "tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "unicode.h"

namespace sentence_search {
namespace {

std::u32string normalized(std::u32string_view text) {
  std::u32string result;
  for (const char32_t code_point : text) append_normalized(code_point, result);
  return result;
}

TEST(Unicode, DecodesWellFormedText) {
  EXPECT_EQ(decode_utf8("a\u00e9\u4e2d\U0001f600"), U"a\u00e9\u4e2d\U0001f600");
  EXPECT_EQ(decode_utf8(""), U"");
  EXPECT_EQ(decode_utf8("\uFFFDx"), U"\uFFFDx");
}

TEST(Unicode, ReplacesEveryStrayByte) {
  EXPECT_EQ(decode_utf8("\x80"
                        "a"),
            U"\uFFFDa");
  EXPECT_EQ(decode_utf8("\xC3"), U"\uFFFD");
  EXPECT_EQ(decode_utf8("\xC0\x80"), U"\uFFFD\uFFFD");                      // longer than its code point needs
  EXPECT_EQ(decode_utf8("\xED\xA0\x80"), U"\uFFFD\uFFFD\uFFFD");            // a surrogate
  EXPECT_EQ(decode_utf8("\xF5\x80\x80\x80"), U"\uFFFD\uFFFD\uFFFD\uFFFD");  // beyond U+10FFFF
  EXPECT_EQ(decode_utf8("\xFF\xE4\xB8\xADx"), U"\uFFFD\u4e2dx");
}

TEST(Unicode, NormalizesAsBertDoes) {
  EXPECT_EQ(normalized(U"HÉLLO Ångström"), U"hello angstrom");
  EXPECT_EQ(normalized(U"e\u0301"), U"e");
  EXPECT_EQ(normalized(U"\u0130"), U"i");
  EXPECT_EQ(normalized(U"\uac01"), U"\u1100\u1161\u11a8");
  EXPECT_EQ(normalized(U"\u0bca"), U"\u0bc6\u0bbe");
  EXPECT_EQ(normalized(U"a\tb\u3000c\u200bd\x01"), U"a b cd");
  EXPECT_EQ(normalized(U"\u6f22\u5b57"), U"\u6f22\u5b57");
}

TEST(Unicode, TellsPunctuationAndIdeographs) {
  for (const char32_t c : std::u32string_view(U"!$+<^`~\u2014\u3002")) {
    EXPECT_TRUE(is_punctuation(c)) << static_cast<std::uint32_t>(c);
  }
  for (const char32_t c : std::u32string_view(U"a0 \u20ac\u00e9")) {
    EXPECT_FALSE(is_punctuation(c)) << static_cast<std::uint32_t>(c);
  }
  EXPECT_TRUE(is_ideograph(U'\u4e2d'));
  EXPECT_FALSE(is_ideograph(U'\u3042'));
}

/// A tokeniser of a few pieces, numbered as they are listed.
class SmallTokenizer : public testing::Test {
 protected:
  SmallTokenizer() : path_(std::filesystem::path(testing::TempDir()) / fmt::format("vocabulary-{}.txt", ::getpid())) {}
  ~SmallTokenizer() override { std::filesystem::remove(path_); }

  strobe::Result<Tokenizer> load(const std::string& vocabulary) const {
    std::ofstream(path_) << vocabulary;
    return Tokenizer::load(path_);
  }

  std::filesystem::path path_;
};

constexpr const char* kPieces = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##aff\n##able\nable\n,\n##x\nu\n";

TEST_F(SmallTokenizer, TakesTheLongestPieces) {
  const auto tokenizer = load(kPieces);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ(tokenizer->encode("Unaffable", 16), (Ids{2, 5, 6, 7, 3}));
  EXPECT_EQ(tokenizer->encode("able,able", 16), (Ids{2, 8, 9, 8, 3}));
  EXPECT_EQ(tokenizer->encode("unknown able", 16), (Ids{2, 1, 8, 3}));
  EXPECT_EQ(tokenizer->encode("", 16), (Ids{2, 3}));
  EXPECT_EQ(tokenizer->encode("able[MASK]able", 16), (Ids{2, 8, 4, 8, 3}));
}

TEST_F(SmallTokenizer, LeavesOutWhatGoesBeyond) {
  const auto tokenizer = load(kPieces);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer->encode("able able able able", 4), (std::vector<std::int32_t>{2, 8, 8, 3}));
  EXPECT_EQ(tokenizer->encode("able", 2), (std::vector<std::int32_t>{2, 3}));
}

TEST_F(SmallTokenizer, GivesUpOnWordsOfMoreThanAHundredCharacters) {
  const auto tokenizer = load(kPieces);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer->encode("u" + std::string(99, 'x'), 256).size(), 102U);
  EXPECT_EQ(tokenizer->encode("u" + std::string(100, 'x'), 256), (std::vector<std::int32_t>{2, 1, 3}));
}

TEST_F(SmallTokenizer, RejectsOtherFiles) {
  const std::string file = fmt::format("'{}' ", path_.string());
  EXPECT_EQ(load("a\nb\n").status().message(),
            file + "is not a BERT vocabulary: [PAD], [UNK], [CLS], [SEP] or [MASK] is missing");
  std::filesystem::remove(path_);
  EXPECT_EQ(Tokenizer::load(path_).status().message(), file + "cannot be read");
}

}  // namespace
}  // namespace sentence_search
