// SPDX-License-Identifier: Apache-2.0
// Row formats that nobody made before: a format is a value, and every value that is valid must work.
#pragma once

#include "attention/random.h"
#include "strobe/row_format.h"

namespace strobe::test {

/// A valid format of `columns` columns whose first `head_dim_v` are V. `unit`: of the columns of parts and of groups of
/// scales, which are multiples of it but where `columns` is none.
RowFormat random_format(Random& random, std::int32_t columns, std::int32_t head_dim_v, std::int32_t unit = 1);

}  // namespace strobe::test
