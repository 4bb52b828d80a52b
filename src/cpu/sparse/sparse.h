// SPDX-License-Identifier: Apache-2.0
// Sparse attention of checked calls.
#pragma once

#include "strobe/sparse.h"

namespace strobe::cpu {

void sparse_forward(const SparseForwardArguments& arguments, const SparseOptions& options, const Execution& execution);
void sparse_backward(const SparseBackwardArguments& arguments, const SparseOptions& options,
                     const Execution& execution);

}  // namespace strobe::cpu
