// SPDX-License-Identifier: Apache-2.0
// The text that is searched: passages with a name each.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "strobe/status.h"

namespace sentence_search {

struct Passage {
  std::string reference;  // "Ge1:1", or the line's number
  std::string text;
};

/// The King James Bible, verse by verse, from the program `bible` of Debian's package bible-kjv.
/// invalid_argument when that program is not there or prints something else.
strobe::Result<std::vector<Passage>> read_bible();

/// Every line of a UTF-8 file that is not blank. invalid_argument when there is none or the file cannot be read.
strobe::Result<std::vector<Passage>> read_lines(const std::filesystem::path& path);

}  // namespace sentence_search
