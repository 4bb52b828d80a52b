// SPDX-License-Identifier: Apache-2.0
// Files and tensors for the tests of the program.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/host_tensor.h"
#include "reference/bound/reference.h"

namespace strobe::test {

/// Elements from N(0, 1), rounded to `dtype`.
io::HostTensor normal_tensor(DType dtype, std::vector<std::int64_t> shape, std::uint64_t seed);

void write_bytes(const std::string& path, std::string_view bytes);
std::string read_bytes(const std::string& path);

/// Expects every element within its bound.
void expect_within_bound(const io::HostTensor& actual, const reference::BoundedTensor& expected, const char* name);

/// A .npy of format version `major`, with `header` as it is.
std::string npy_bytes(int major, std::string_view header, std::string_view data);

}  // namespace strobe::test
