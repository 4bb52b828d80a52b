// SPDX-License-Identifier: Apache-2.0
// The words of an expression's text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "strobe/status.h"

namespace strobe::expression {

enum class TokenKind { name, integer, real, symbol, end };

struct Token {
  TokenKind kind = TokenKind::end;
  std::string_view text;
  std::size_t column = 1;  // of its first character, from 1 on
};

/// A text, and what it is called in messages: "score" or "mask".
struct Source {
  std::string_view what;
  std::string_view text;
};

/// What is wrong with a text, and where: "score: MESSAGE at column 9: `TEXT`".
Status error_at(const Source& source, std::size_t column, std::string_view message);

/// The text as tokens, the last of which is an end.
Result<std::vector<Token>> tokenize(const Source& source);

}  // namespace strobe::expression
