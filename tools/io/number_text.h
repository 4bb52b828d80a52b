// SPDX-License-Identifier: Apache-2.0
// Large numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace strobe::io {

/// 1234567 as "1,234,567"; for numbers that are not negative.
std::string grouped(std::int64_t value);

/// Bytes as "5.0 MiB", or "1.25 GiB" from there on.
std::string binary_units(std::int64_t bytes);

}  // namespace strobe::io
