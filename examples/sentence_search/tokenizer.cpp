// SPDX-License-Identifier: Apache-2.0
#include "tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "unicode.h"

namespace sentence_search {
namespace {

constexpr std::u32string_view kUnknown = U"[UNK]";
constexpr std::u32string_view kFirst = U"[CLS]";
constexpr std::u32string_view kLast = U"[SEP]";
constexpr std::array<std::u32string_view, 5> kSpecialPieces = {U"[PAD]", kUnknown, kFirst, kLast, U"[MASK]"};

constexpr std::size_t kLongestWord = 100;  // BERT's limit: a longer word is unknown

/// Calls use(word) for every word of normalised text, where each punctuation mark and ideograph is a word of its own.
template <class Use>
void for_each_word(std::u32string_view text, const Use& use) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const bool at_end = i == text.size();
    const bool alone = !at_end && (is_punctuation(text[i]) || is_ideograph(text[i]));
    if (!at_end && !alone && !is_space(text[i])) continue;
    if (i > begin) use(text.substr(begin, i - begin));
    if (alone) use(text.substr(i, 1));
    begin = i + 1;
  }
}

/// The special piece that is written out in `text` first, and where; npos when there is none.
std::pair<std::size_t, std::u32string_view> find_special(std::u32string_view text) {
  std::pair<std::size_t, std::u32string_view> first{std::u32string_view::npos, {}};
  for (const std::u32string_view piece : kSpecialPieces) {
    const std::size_t at = text.find(piece);
    if (at < first.first) first = {at, piece};
  }
  return first;
}

}  // namespace

strobe::Result<Tokenizer> Tokenizer::load(const std::filesystem::path& vocabulary) {
  const auto reject = [&](const char* reason) {
    return strobe::Status(strobe::StatusCode::invalid_argument, fmt::format("'{}' {}", vocabulary.string(), reason));
  };
  std::ifstream file(vocabulary);
  if (!file) return reject("cannot be read");
  Vocabulary pieces;
  std::int32_t id = 0;
  for (std::string line; std::getline(file, line); ++id) pieces.emplace(decode_utf8(line), id);
  for (const std::u32string_view piece : kSpecialPieces) {
    if (!pieces.contains(piece))
      return reject("is not a BERT vocabulary: [PAD], [UNK], [CLS], [SEP] or [MASK] is missing");
  }
  return Tokenizer(std::move(pieces));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, std::size_t max_tokens) const {
  std::vector<std::int32_t> ids = {special(kFirst)};
  const std::u32string decoded = decode_utf8(text);
  std::u32string_view rest = decoded;
  while (true) {
    const auto [at, piece] = find_special(rest);
    append_text(rest.substr(0, at), ids);
    if (at == std::u32string_view::npos) break;
    ids.push_back(special(piece));
    rest.remove_prefix(at + piece.size());
  }
  ids.resize(std::min(ids.size(), max_tokens - 1));
  ids.push_back(special(kLast));
  return ids;
}

void Tokenizer::append_text(std::u32string_view text, std::vector<std::int32_t>& ids) const {
  std::u32string normalized;
  normalized.reserve(text.size());
  for (const char32_t code_point : text) append_normalized(code_point, normalized);
  for_each_word(normalized, [&](std::u32string_view word) { append_word(word, ids); });
}

std::optional<Tokenizer::Piece> Tokenizer::longest_piece(std::u32string_view word, std::size_t begin) const {
  std::u32string piece;
  for (std::size_t end = word.size(); end > begin; --end) {
    piece.assign(begin == 0 ? U"" : U"##").append(word.substr(begin, end - begin));
    if (const auto found = vocabulary_.find(piece); found != vocabulary_.end()) return Piece{found->second, end};
  }
  return std::nullopt;
}

void Tokenizer::append_word(std::u32string_view word, std::vector<std::int32_t>& ids) const {
  const std::size_t ids_before = ids.size();
  std::size_t begin = 0;
  while (word.size() <= kLongestWord && begin < word.size()) {
    const std::optional<Piece> piece = longest_piece(word, begin);
    if (!piece) break;
    ids.push_back(piece->id);
    begin = piece->end;
  }
  if (begin == word.size()) return;
  ids.resize(ids_before);  // a word that is not known whole is not known at all
  ids.push_back(special(kUnknown));
}

}  // namespace sentence_search
