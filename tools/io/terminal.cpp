// SPDX-License-Identifier: Apache-2.0
#include "io/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

namespace strobe::io {

bool is_terminal(std::FILE* stream) { return ::isatty(::fileno(stream)) == 1; }

int terminal_columns(std::FILE* stream, int otherwise) {
  winsize size{};
  const bool known = ::ioctl(::fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : otherwise;
}

}  // namespace strobe::io
