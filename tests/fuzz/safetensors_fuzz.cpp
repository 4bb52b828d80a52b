// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors file: tensors that lie inside it, or a message.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "expect.h"
#include "io/safetensors.h"
#include "memory_file.h"

namespace strobe::fuzz {
namespace {

std::size_t bytes_of(const ConstTensorView& view) {
  std::size_t bytes = size_of(view.dtype);
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.rank); ++axis) {
    bytes *= static_cast<std::size_t>(view.shape[axis]);
  }
  return bytes;
}

/// Looks at one tensor both ways. Every byte of a view is read, so that one outside the mapping ends the process.
void visit(const io::SafetensorsFile& file, const std::string& name) {
  const Result<io::HostTensor> copy = file.read(name);
  const Result<ConstTensorView> view = file.find(name);
  expect(copy.ok() || !copy.status().message().empty(), "a rejected copy has a message");
  expect(view.ok() || !view.status().message().empty(), "a rejected view has a message");
  if (!view.ok()) return;
  expect(copy.ok(), "what can be viewed can be copied");
  const std::span bytes(static_cast<const std::byte*>(view->data), bytes_of(*view));
  expect(std::ranges::equal(bytes, copy->bytes), "view and copy hold the same bytes");
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
  expect(!file->find(after_the_last).ok(), "a tensor that is not there is not found");
  return 0;
}
