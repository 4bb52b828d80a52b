// SPDX-License-Identifier: Apache-2.0
// Whether text goes to a person's terminal, and how wide that is.
#pragma once

#include <cstdio>

namespace strobe::io {

bool is_terminal(std::FILE* stream);

/// Columns of the terminal behind `stream`, or `otherwise` when there is none.
int terminal_columns(std::FILE* stream, int otherwise);

}  // namespace strobe::io
