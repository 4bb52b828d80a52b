// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors file: tensors, or a message.
#include <cstdint>
#include <string>
#include <vector>

#include "expect.h"
#include "io/safetensors.h"
#include "memory_file.h"

namespace strobe::fuzz {
namespace {

void visit(const io::SafetensorsFile& file, const std::string& name) {
  const Result<io::HostTensor> tensor = file.read(name);
  if (!tensor.ok()) return expect(!tensor.status().message().empty(), "a rejected tensor has a message");
  expect(io::byte_count(tensor->shape, 8 * size_of(tensor->dtype)) == tensor->bytes.size(),
         "a tensor has the bytes of its shape");
}

}  // namespace
}  // namespace strobe::fuzz

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using strobe::fuzz::expect;
  const strobe::fuzz::MemoryFile memory({data, size});
  const auto file = strobe::io::SafetensorsFile::open(memory.path());
  if (!file.ok()) {
    expect(file.status().code() == strobe::StatusCode::invalid_argument, "a bad file is an invalid argument");
    expect(!file.status().message().empty(), "a rejection has a message");
    return 0;
  }
  const std::vector<std::string> names = file->names();
  for (const std::string& name : names) strobe::fuzz::visit(*file, name);
  const std::string after_the_last = names.empty() ? "" : names.back() + "x";
  expect(!file->read(after_the_last).ok(), "a tensor that is not there is not found");
  return 0;
}
