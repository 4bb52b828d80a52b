// SPDX-License-Identifier: Apache-2.0
// What of sparse attention is compiled once per instruction set.
#pragma once

#include <cstddef>

#include "call/row_format.h"

namespace strobe::cpu {

/// The columns of a row as float32: `to` has room for format.columns().
void decode_row(const RowFormat& format, const RowBytes<const std::byte>& from, float* to);

}  // namespace strobe::cpu
