// SPDX-License-Identifier: Apache-2.0
// Lengths, page tables and lists of entries on a device, which calls do not wait for: checked where that is asked for.
#pragma once

#include "engine/engine.h"
#include "strobe/sparse.h"

namespace strobe::api {

/// Where the environment has STROBE_CHECK_VALUES=1, what check_values() says of the values on the problem's device,
/// once what is queued on execution.stream is done. Host memory is check_memory()'s.
Status check_device_values(const AttentionProblem& problem, const ForwardArguments& arguments,
                           const Execution& execution);
Status check_device_values(const AttentionProblem& problem, const BackwardArguments& arguments,
                           const Execution& execution);
Status check_device_values(const AttentionProblem& problem, const JvpArguments& arguments, const Execution& execution);

/// Likewise what check_sparse_values() says of the lists of a sparse call that is not on the CPU.
Status check_device_values(const SparseForwardArguments& arguments, const Execution& execution);

/// Likewise what check_append_values() says of an append that is not on the CPU.
Status check_device_values(const AppendArguments& arguments, const Execution& execution);

}  // namespace strobe::api
