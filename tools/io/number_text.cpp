// SPDX-License-Identifier: Apache-2.0
#include "io/number_text.h"

#include <fmt/format.h>

namespace strobe::io {

std::string grouped(std::int64_t value) {
  const std::string digits = std::to_string(value);
  std::string result;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) result += ',';
    result += digits[i];
  }
  return result;
}

std::string binary_units(std::int64_t bytes) {
  const double mebibytes = static_cast<double>(bytes) / (1024.0 * 1024.0);
  return mebibytes < 1024.0 ? fmt::format("{:.1f} MiB", mebibytes) : fmt::format("{:.2f} GiB", mebibytes / 1024.0);
}

}  // namespace strobe::io
