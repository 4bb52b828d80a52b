// SPDX-License-Identifier: Apache-2.0
#include "expression/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "expression/names.h"

namespace strobe::expression {
namespace {

constexpr std::array<std::string_view, 21> kSymbols = {"<=", ">=", "==", "!=", "&&", "||", "+", "-", "*", "/", "%",
                                                       "<",  ">",  "!",  "?",  ":",  "(",  ")", "[", "]", ","};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

std::size_t digits_from(std::string_view text, std::size_t at) {
  while (at < text.size() && is_digit(text[at])) ++at;
  return at;
}

/// The end of the number that begins at `begin`, and whether it is a real.
std::pair<std::size_t, bool> number_end(std::string_view text, std::size_t begin) {
  std::size_t at = digits_from(text, begin);
  bool real = false;
  if (at < text.size() && text[at] == '.') {
    real = true;
    at = digits_from(text, at + 1);
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    std::size_t exponent = at + 1;
    if (exponent < text.size() && (text[exponent] == '+' || text[exponent] == '-')) ++exponent;
    if (exponent < text.size() && is_digit(text[exponent])) {
      real = true;
      at = digits_from(text, exponent);
    }
  }
  return {at, real};
}

}  // namespace

Status error_at(const Source& source, std::size_t column, std::string_view message) {
  constexpr std::size_t kShown = 60;
  const bool long_text = source.text.size() > kShown;
  return {StatusCode::invalid_argument, fmt::format("{}: {} at column {}: `{}{}`", source.what, message, column,
                                                    source.text.substr(0, kShown), long_text ? " ..." : "")};
}

Result<std::vector<Token>> tokenize(const Source& source) {
  const std::string_view text = source.text;
  std::vector<Token> tokens;
  std::size_t at = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      ++at;
      continue;
    }
    std::size_t end = at + 1;
    TokenKind kind = TokenKind::symbol;
    if (is_digit(c) || (c == '.' && at + 1 < text.size() && is_digit(text[at + 1]))) {
      const auto [number, real] = number_end(text, at);
      end = number;
      kind = real ? TokenKind::real : TokenKind::integer;
      if (end < text.size() && is_letter(text[end])) {
        return error_at(source, end + 1, fmt::format("a number may not be followed by `{}`", text[end]));
      }
    } else if (is_letter(c)) {
      while (end < text.size() && (is_letter(text[end]) || is_digit(text[end]))) ++end;
      kind = TokenKind::name;
    } else {
      const auto* const symbol =
          std::ranges::find_if(kSymbols, [&](std::string_view one) { return text.substr(at, one.size()) == one; });
      if (symbol == kSymbols.end()) {
        const bool printable = c > ' ' && c < '\x7f';
        return error_at(source, at + 1,
                        printable ? fmt::format("unexpected `{}`{}", c, instead_of(text.substr(at, 1)))
                                  : std::string("a character that is not ASCII"));
      }
      end = at + symbol->size();
    }
    tokens.push_back({kind, text.substr(at, end - at), at + 1});
    at = end;
  }
  tokens.push_back({TokenKind::end, {}, text.size() + 1});
  return tokens;
}

}  // namespace strobe::expression
