// SPDX-License-Identifier: Apache-2.0
#include "unicode.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sentence_search {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

struct CodePointRange {
  char32_t first;
  char32_t last;
};

struct FoldedSequence {
  char32_t from;
  std::array<char32_t, 3> to;  // zero-padded
};

#include "unicode_tables.inc"

static_assert(kFoldedFrom.size() == kFoldedTo.size());

// The blocks that BERT calls Chinese characters.
constexpr CodePointRange kIdeographs[] = {
    {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},   {0x20000, 0x2A6DF},
    {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F},
};

/// Whether one of the ascending `ranges` holds `code_point`.
bool contains(std::span<const CodePointRange> ranges, char32_t code_point) {
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), code_point,
                                      [](char32_t value, const CodePointRange& range) { return value < range.first; });
  return after != ranges.begin() && code_point <= std::prev(after)->last;
}

/// A Hangul syllable as its two or three letters. Source: The Unicode Standard, section 3.12.
bool append_hangul(char32_t syllable, std::u32string& text) {
  constexpr char32_t kFirstSyllable = 0xAC00;
  constexpr char32_t kLastSyllable = 0xD7A3;
  constexpr char32_t kVowels = 21;
  constexpr char32_t kTrailing = 28;  // including none
  if (syllable < kFirstSyllable || syllable > kLastSyllable) return false;
  const char32_t index = syllable - kFirstSyllable;
  text += static_cast<char32_t>(0x1100 + index / (kVowels * kTrailing));
  text += static_cast<char32_t>(0x1161 + index / kTrailing % kVowels);
  if (index % kTrailing != 0) text += static_cast<char32_t>(0x11A7 + index % kTrailing);
  return true;
}

/// Decodes one sequence of `length` bytes at the start of `text`, or gives U+FFFD when it is not well-formed.
char32_t decode_sequence(std::string_view text, std::size_t length) {
  constexpr std::array<char32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};  // shorter forms must be used below
  if (text.size() < length) return kReplacement;
  char32_t code_point = static_cast<unsigned char>(text[0]) & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xC0U) != 0x80U) return kReplacement;
    code_point = (code_point << 6U) | (byte & 0x3FU);
  }
  const bool surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
  return code_point < kSmallest[length] || code_point > 0x10FFFF || surrogate ? kReplacement : code_point;
}

}  // namespace

std::u32string decode_utf8(std::string_view text) {
  std::u32string decoded;
  decoded.reserve(text.size());
  while (!text.empty()) {
    const auto lead = static_cast<unsigned char>(text[0]);
    std::size_t length = 1;
    if (lead < 0x80) {
      decoded += lead;
    } else {
      length = lead >= 0xF8 ? 0 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 0;
      decoded += length == 0 ? kReplacement : decode_sequence(text, length);
      if (decoded.back() == kReplacement) length = text.starts_with("\xEF\xBF\xBD") ? 3 : 1;
    }
    text.remove_prefix(length);
  }
  return decoded;
}

void append_normalized(char32_t code_point, std::u32string& text) {
  if (contains(kRemoved, code_point)) return;
  if (contains(kSpaces, code_point)) {
    text += U' ';
    return;
  }
  if (append_hangul(code_point, text)) return;
  const auto folded = std::lower_bound(kFoldedFrom.begin(), kFoldedFrom.end(), code_point);
  if (folded != kFoldedFrom.end() && *folded == code_point) {
    text += kFoldedTo[static_cast<std::size_t>(folded - kFoldedFrom.begin())];
    return;
  }
  const auto sequence = std::ranges::find(kFoldedSequences, code_point, &FoldedSequence::from);
  if (sequence == std::end(kFoldedSequences)) {
    text += code_point;
    return;
  }
  for (const char32_t part : sequence->to) {
    if (part != 0) text += part;
  }
}

bool is_punctuation(char32_t code_point) { return contains(kPunctuation, code_point); }

bool is_ideograph(char32_t code_point) { return contains(kIdeographs, code_point); }

}  // namespace sentence_search
