// SPDX-License-Identifier: Apache-2.0
// Text as BERT's tokeniser sees it: code points, lower-cased and without accents.
#pragma once

#include <string>
#include <string_view>

namespace sentence_search {

/// The code points of UTF-8 text; bytes that are not well-formed UTF-8 become U+FFFD, one for each byte.
std::u32string decode_utf8(std::string_view text);

/// What BERT's normaliser makes of one code point: lower case, decomposed, accents and control characters gone, every
/// white space a plain one. Most code points stay as they are; some become none or several.
void append_normalized(char32_t code_point, std::u32string& text);

/// A plain space: the only white space that normalised text has.
inline bool is_space(char32_t code_point) { return code_point == U' '; }

/// Punctuation by Unicode, and every ASCII character that is neither letter, digit, space nor control character.
bool is_punctuation(char32_t code_point);

/// A Chinese character: a word of its own, since Chinese is written without spaces.
bool is_ideograph(char32_t code_point);

}  // namespace sentence_search
