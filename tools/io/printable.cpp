// SPDX-License-Identifier: Apache-2.0
#include "io/printable.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>

namespace strobe::io {
namespace {

struct Character {
  std::size_t bytes = 0;  // 0: what is there is not UTF-8
  std::uint32_t code = 0;
};

/// How many bytes a character that starts with `lead` has; 0 for a byte that starts none.
std::size_t length_of(unsigned char lead) {
  if (lead < 0x80U) return 1;
  if (lead < 0xC2U) return 0;  // a continuation, or a longer spelling of ASCII
  if (lead < 0xE0U) return 2;
  if (lead < 0xF0U) return 3;
  return lead < 0xF5U ? 4 : 0;
}

Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = length_of(byte(0));
  if (length == 0 || length > text.size()) return {};
  std::uint32_t code = length == 1 ? byte(0) : byte(0) & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return {};
    code = (code << 6U) | (byte(i) & 0x3FU);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xD800U && code < 0xE000U;
  if (code < kLeast[length] || code > 0x10FFFFU || is_surrogate) return {};
  return {length, code};
}

/// Characters that a terminal obeys instead of showing them, and those that change the order of others.
bool is_command(std::uint32_t code) {
  const auto within = [code](std::uint32_t first, std::uint32_t last) { return code >= first && code <= last; };
  return code < 0x20U || within(0x7F, 0x9F) || within(0x200E, 0x200F) || within(0x2028, 0x202E) ||
         within(0x2066, 0x2069) || code == 0x061CU;
}

std::string escaped(std::uint32_t code) {
  if (code == '\n') return "\\n";
  if (code == '\t') return "\\t";
  return code < 0x80U ? fmt::format("\\x{:02x}", code) : fmt::format("\\u{:04x}", code);
}

std::string made_printable(std::string_view text, bool keeps_line_ends) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Character character = first_character(text);
    const std::size_t bytes = character.bytes == 0 ? 1 : character.bytes;
    const bool stays = keeps_line_ends && text[0] == '\n';
    if (character.bytes == 0) {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    } else if (is_command(character.code) && !stays) {
      result += escaped(character.code);
    } else {
      result += text.substr(0, bytes);
    }
    text.remove_prefix(bytes);
  }
  return result;
}

}  // namespace

std::string printable(std::string_view text) { return made_printable(text, false); }

std::string printable_lines(std::string_view text) { return made_printable(text, true); }

}  // namespace strobe::io
