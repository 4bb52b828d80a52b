// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target over its corpus, as libFuzzer does: for compilers without libFuzzer. Each line of the corpus is
// one input in hexadecimal digits, and its name if it has one.
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

// NOLINTNEXTLINE(readability-identifier-naming): the targets have it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

std::vector<std::uint8_t> bytes_of(std::string_view digits) {
  std::vector<std::uint8_t> bytes(digits.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::from_chars(digits.data() + 2 * i, digits.data() + 2 * i + 2, bytes[i], 16);
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint8_t nothing = 0;
  LLVMFuzzerTestOneInput(&nothing, 0);
  int inputs = 0;
  for (int i = 1; i < argc; ++i) {
    std::ifstream corpus(argv[i]);
    for (std::string line; std::getline(corpus, line); ++inputs) {
      std::fprintf(stderr, "%s\n", line.c_str());  // the last line is the input that ended the process
      const std::vector<std::uint8_t> bytes = bytes_of(std::string_view(line).substr(0, line.find(' ')));
      LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    }
  }
  std::printf("%d inputs\n", inputs);
  return inputs > 0 ? 0 : 1;
}
