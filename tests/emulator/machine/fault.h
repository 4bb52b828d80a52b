// SPDX-License-Identifier: Apache-2.0
// What a kernel did that a GPU would not do, or that this emulator cannot do.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace strobe::emulator {

class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

__attribute__((format(printf, 1, 2))) inline std::string text_of(const char* format, ...) {
  char buffer[1024];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof(buffer), format, arguments);
  va_end(arguments);
  return buffer;
}

}  // namespace strobe::emulator
