// SPDX-License-Identifier: Apache-2.0
// Any bytes as a .npy file: a tensor that is what its header says, or a message.
#include <cstddef>
#include <cstdint>

#include "expect.h"
#include "io/npy.h"
#include "memory_file.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using strobe::fuzz::expect;
  const strobe::fuzz::MemoryFile file({data, size});
  const strobe::Result<strobe::io::HostTensor> tensor = strobe::io::read_npy(file.path());
  if (!tensor.ok()) {
    expect(tensor.status().code() == strobe::StatusCode::invalid_argument, "a bad file is an invalid argument");
    expect(!tensor.status().message().empty(), "a rejection has a message");
    return 0;
  }
  expect(!tensor->shape.empty() && tensor->shape.size() <= strobe::kMaxRank, "the rank is from 1 to kMaxRank");
  std::size_t bytes = strobe::size_of(tensor->dtype);
  for (const std::int64_t extent : tensor->shape) bytes *= static_cast<std::size_t>(extent);
  expect(bytes == tensor->bytes.size(), "there are as many bytes as the shape takes");
  expect(bytes <= size, "no byte comes from nowhere");
  return 0;
}
