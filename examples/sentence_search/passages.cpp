// SPDX-License-Identifier: Apache-2.0
#include "passages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <memory>
#include <utility>

namespace sentence_search {
namespace {

using strobe::Result;
using strobe::Status;
using strobe::StatusCode;

// -f: one verse on a line, after its reference.
constexpr const char* kBibleCommand = "bible -f 'gen1:1-rev22:21' 2>/dev/null";

struct ClosePipe {
  void operator()(std::FILE* pipe) const { ::pclose(pipe); }
};

std::string bible_output() {
  // NOLINTNEXTLINE(bugprone-command-processor): the command is a constant
  const std::unique_ptr<std::FILE, ClosePipe> pipe(::popen(kBibleCommand, "r"));
  std::string output;
  std::array<char, 65536> chunk{};
  while (pipe) {
    const std::size_t count = std::fread(chunk.data(), 1, chunk.size(), pipe.get());
    if (count == 0) break;
    output.append(chunk.data(), count);
  }
  return output;
}

}  // namespace

Result<std::vector<Passage>> read_bible() {
  const std::string output = bible_output();
  std::vector<Passage> verses;
  for (std::size_t begin = 0; begin < output.size();) {
    const std::size_t end = std::min(output.find('\n', begin), output.size());
    const std::string line = output.substr(begin, end - begin);
    const std::size_t space = line.find(' ');
    if (space != std::string::npos) verses.push_back({line.substr(0, space), line.substr(space + 1)});
    begin = end + 1;
  }
  if (!verses.empty()) return verses;
  return Status(StatusCode::invalid_argument,
                "the program `bible` printed no verses; install Debian's package bible-kjv, or give --text FILE");
}

Result<std::vector<Passage>> read_lines(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<Passage> passages;
  std::size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") != std::string::npos) passages.push_back({std::to_string(number), line});
  }
  if (!passages.empty()) return passages;
  return Status(StatusCode::invalid_argument,
                fmt::format("'{}' {}", path.string(), file.is_open() ? "holds no text" : "cannot be read"));
}

}  // namespace sentence_search
