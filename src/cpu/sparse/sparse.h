// SPDX-License-Identifier: Apache-2.0
// Sparse attention of checked calls.
#pragma once

#include <string>

#include "strobe/sparse.h"

namespace strobe::cpu {

void sparse_forward(const SparseForwardArguments& arguments, const SparseOptions& options, const Execution& execution);
/// What the forward does, in a few lines.
std::string explain_sparse_forward(const SparseForwardArguments& arguments);

void sparse_backward(const SparseBackwardArguments& arguments, const SparseOptions& options,
                     const Execution& execution);

}  // namespace strobe::cpu
