// SPDX-License-Identifier: Apache-2.0
// Sparse attention on GPUs: the forward of paged caches, over lists as page tables, and the gradients of such calls.
#pragma once

#include <string>

#include "runtime/device.h"
#include "strobe/sparse.h"

namespace strobe::gpu {

/// Enqueues a checked call on the stream; waits for nothing. Queries are computed in launches that share a workspace of
/// some 256 MiB at most: the rows that lists name, as a kernel finds them, and where several sources, the sink or an
/// LSE are put together, each source's O in q's dtype.
Status sparse_forward(const SparseForwardArguments& arguments, const SparseOptions& options, const Execution& execution,
                      const runtime::CudaDevice& device);

/// What that does, in a few lines.
Result<std::string> explain_sparse_forward(const SparseForwardArguments& arguments, const SparseOptions& options,
                                           const Execution& execution, const runtime::CudaDevice& device);

/// The gradients of a checked call of 16-bit elements, likewise. P, dS and what each query adds to the rows of its keys
/// are in the workspace for a wave of queries at a time, some 256 MiB or what one query needs; dK and dV are there in
/// float32. The whole is rounded up to a power of two, and waves have what that adds.
Status sparse_backward(const SparseBackwardArguments& arguments, const SparseOptions& options,
                       const Execution& execution, const runtime::CudaDevice& device);

}  // namespace strobe::gpu
