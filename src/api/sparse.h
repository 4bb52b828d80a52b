// SPDX-License-Identifier: Apache-2.0
// What must hold of a call of sparse attention.
#pragma once

#include <span>

#include "api/call_memory.h"
#include "api/tensor_checks.h"
#include "strobe/sparse.h"

namespace strobe::api {

/// Shapes, dtypes, formats and options; nothing that tensors hold.
Status check_sparse_shapes(const SparseForwardArguments& arguments, const SparseOptions& options);

/// Pointers, and that the outputs o and lse are apart from one another and from the inputs.
Status check_sparse_memory(const SparseForwardArguments& arguments);

/// Lengths, pages and lists, of tensors in host memory whose shapes are checked.
Status check_sparse_values(const SparseForwardArguments& arguments);

/// The sources' tensors, as inputs.
void add_sources(CallMemory& memory, std::span<const SparseSource> sources);

}  // namespace strobe::api
