// SPDX-License-Identifier: Apache-2.0
#include "cli/files.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "attention/random.h"

namespace strobe::test {

io::HostTensor normal_tensor(DType dtype, std::vector<std::int64_t> shape, std::uint64_t seed) {
  io::HostTensor tensor = io::make_tensor(dtype, std::move(shape));
  Random random(seed);
  const std::size_t count = io::element_count(tensor);
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(random.normal());
    const float16 half = to_float16(value);
    const bfloat16 brain = to_bfloat16(value);
    const void* const source = dtype == DType::float32   ? static_cast<const void*>(&value)
                               : dtype == DType::float16 ? static_cast<const void*>(&half)
                                                         : static_cast<const void*>(&brain);
    std::memcpy(tensor.bytes.data() + i * size_of(dtype), source, size_of(dtype));
  }
  return tensor;
}

void write_bytes(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string read_bytes(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::string npy_bytes(int major, std::string_view header, std::string_view data) {
  std::string bytes = "\x93NUMPY";
  bytes += {static_cast<char>(major), '\0'};
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) bytes += static_cast<char>((header.size() >> (8 * i)) & 0xFFU);
  bytes += header;
  bytes += data;
  return bytes;
}

void expect_within_bound(const io::HostTensor& actual, const reference::BoundedTensor& expected, const char* name) {
  const reference::WorstElement worst = reference::worst_element(io::view(actual), expected);
  EXPECT_LE(worst.ratio, 1.0) << name << ": " << reference::describe(worst, io::view(actual));
}

}  // namespace strobe::test
