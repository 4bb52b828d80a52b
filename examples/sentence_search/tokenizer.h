// SPDX-License-Identifier: Apache-2.0
// BERT's tokeniser: words by spaces and punctuation, then the longest pieces of each word that the vocabulary knows.
// Source: Devlin et al., "BERT" (2018); Wu et al., "Google's Neural Machine Translation System" (2016), WordPiece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "strobe/status.h"

namespace sentence_search {

class Tokenizer {
 public:
  /// Reads vocab.txt: one piece per line, its id the line's number from 0; pieces inside a word start with "##".
  /// invalid_argument, in a sentence, when the file cannot be read or lacks one of BERT's special pieces.
  static strobe::Result<Tokenizer> load(const std::filesystem::path& vocabulary);

  /// [CLS], the pieces of `text`, [SEP]: at most `max_tokens` (2 or more) in all, what goes beyond is left out.
  std::vector<std::int32_t> encode(std::string_view text, std::size_t max_tokens) const;

 private:
  struct Hash {
    using is_transparent = void;  // NOLINT(readability-identifier-naming): the standard's name
    std::size_t operator()(std::u32string_view text) const { return std::hash<std::u32string_view>{}(text); }
  };
  using Vocabulary = std::unordered_map<std::u32string, std::int32_t, Hash, std::equal_to<>>;

  struct Piece {
    std::int32_t id;
    std::size_t end;  // in the word
  };

  explicit Tokenizer(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}

  std::int32_t special(std::u32string_view piece) const { return vocabulary_.find(piece)->second; }
  void append_text(std::u32string_view text, std::vector<std::int32_t>& ids) const;
  std::optional<Piece> longest_piece(std::u32string_view word, std::size_t begin) const;
  void append_word(std::u32string_view word, std::vector<std::int32_t>& ids) const;

  Vocabulary vocabulary_;
};

}  // namespace sentence_search
