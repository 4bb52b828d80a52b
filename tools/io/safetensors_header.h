// SPDX-License-Identifier: Apache-2.0
// The JSON header of a safetensors file, read event by event: a tree of JSON values would take memory to be destroyed,
// and end the process where there is none.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace strobe::io {

/// A field of one tensor: there or not, and what it holds if it is of a kind that the format knows.
struct HeaderField {
  bool given = false;
  std::optional<std::string> text;
  std::optional<std::vector<std::int64_t>> sizes;  // integers from 0 to 2^63 - 1
};

/// What the header says of one tensor, unchecked.
struct HeaderEntry {
  HeaderField dtype;
  HeaderField shape;
  HeaderField data_offsets;
};

struct SafetensorsHeader {
  std::map<std::string, HeaderEntry> entries;  // by name, "__metadata__" included
  std::optional<std::string> duplicate;        // a name that is there twice
};

/// Nothing when `text` is not one JSON object.
std::optional<SafetensorsHeader> parse_safetensors_header(std::string_view text);

}  // namespace strobe::io
