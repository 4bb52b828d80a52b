// SPDX-License-Identifier: Apache-2.0
// What must hold of a cache whose rows have a format.
#pragma once

#include <string_view>

#include "api/tensor_checks.h"
#include "strobe/row_format.h"

namespace strobe::api {

/// check_row_format() with the format's name in front of what it says.
Status check_named_format(std::string_view name, const RowFormat& format);

/// uint8 [.., heads_kv, row_bytes], whose rows are aligned as the format asks; with tails, rows that follow one another
/// in each page. The layout has been checked.
Status check_formatted_cache(const NamedTensor& cache, const RowFormat& format);

}  // namespace strobe::api
