// SPDX-License-Identifier: Apache-2.0
// Tokens of PTX text.
#pragma once

#include <algorithm>
#include <cctype>
#include <string_view>

namespace strobe::emulator {

inline std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.remove_suffix(1);
  return text;
}

inline bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%';
}

/// A place in a text without comments; it knows its line.
class Cursor {
 public:
  explicit Cursor(std::string_view text, int line = 1) : text_(text), line_(line) {}

  bool at_end() {
    skip_space();
    return position_ >= text_.size();
  }
  int line() const { return line_; }
  std::size_t position() const { return position_; }
  char peek() {
    skip_space();
    return position_ < text_.size() ? text_[position_] : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++position_;
    return true;
  }
  /// A name, number or directive; empty where there is none.
  std::string_view word() {
    skip_space();
    const std::size_t begin = position_;
    while (position_ < text_.size() && (is_name(text_[position_]) || text_[position_] == '.')) ++position_;
    return text_.substr(begin, position_ - begin);
  }
  /// All up to the character, which is passed over.
  std::string_view until(char c) {
    const std::size_t begin = position_;
    while (position_ < text_.size() && text_[position_] != c) step();
    const std::string_view found = text_.substr(begin, position_ - begin);
    if (position_ < text_.size()) step();
    return found;
  }
  /// All up to one of the characters, which is the next.
  std::string_view before_any(std::string_view characters) {
    const std::size_t begin = position_;
    while (position_ < text_.size() && characters.find(text_[position_]) == std::string_view::npos) step();
    return text_.substr(begin, position_ - begin);
  }
  void skip_space() {
    while (position_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[position_])) != 0) step();
  }
  /// Back to a place on the same line.
  void back_to(std::size_t position) { position_ = position; }

 private:
  void step() {
    if (text_[position_] == '\n') ++line_;
    ++position_;
  }
  std::string_view text_;
  std::size_t position_ = 0;
  int line_;
};

/// Pieces between commas that no bracket encloses.
template <typename Visit>
void split_at_commas(std::string_view text, const Visit& visit) {
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (c == '{' || c == '[' || c == '(') ++depth;
    if (c == '}' || c == ']' || c == ')') --depth;
    if (i == text.size() || (c == ',' && depth == 0)) {
      if (i > begin) visit(trimmed(text.substr(begin, i - begin)));
      begin = i + 1;
    }
  }
}

}  // namespace strobe::emulator
