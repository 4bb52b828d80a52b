// SPDX-License-Identifier: Apache-2.0
// From text to a typed graph.
//
//   expression  := or [ "?" expression ":" expression ]
//   or          := and { "||" and }
//   and         := equality { "&&" equality }
//   equality    := comparison { ("==" | "!=") comparison }
//   comparison  := sum [ ("<" | "<=" | ">" | ">=") sum ]
//   sum         := product { ("+" | "-") product }
//   product     := unary { ("*" | "/" | "%") unary }
//   unary       := { "-" | "+" | "!" } primary
//   primary     := literal | variable | function "(" list ")" | capture [ "[" expression "]" ... ] | "(" expression ")"
#pragma once

#include <span>
#include <string>

#include "expression/graph.h"
#include "expression/lexer.h"
#include "strobe/expression.h"
#include "strobe/status.h"

namespace strobe::expression {

inline constexpr std::size_t kLongestText = 4096;  // characters
inline constexpr int kDeepest = 64;                // parentheses, indices and arguments within one another
inline constexpr std::size_t kMostNodes = 512;     // of a text

/// A tensor that a text may read.
using Capture = CaptureType;
Type type_of(const Capture& capture);

/// The root of the text in `graph`, which has its nodes then: a real, converted if it is an integer, or, where
/// `boolean` is wanted, a boolean.
Result<Id> parse(const Source& source, std::span<const Capture> captures, bool wants_boolean, Graph& graph);

}  // namespace strobe::expression
