// SPDX-License-Identifier: Apache-2.0
// The caller's tensors and options, checked, as one AttentionProblem. No unchecked shape passes below this layer.
#pragma once

#include <string_view>

#include "call/problem.h"
#include "strobe/attention.h"
#include "strobe/jvp.h"

namespace strobe::api {

/// Shapes, dtypes, strides, devices and option ranges; pointers are not read.
Result<AttentionProblem> make_problem(const ForwardArguments& arguments, const AttentionOptions& options);
Result<AttentionProblem> make_problem(const BackwardArguments& arguments, const AttentionOptions& options);
Result<AttentionProblem> make_problem(const JvpArguments& arguments, const AttentionOptions& options);

/// unsupported where keys are those of a key-value cache, which `pass` ("backward") does not have.
Status check_no_cache(const Sequences& sequences, std::string_view pass);

/// Pointers, overlaps and, on the CPU, check_values().
Status check_memory(const AttentionProblem& problem, const ForwardArguments& arguments);
Status check_memory(const AttentionProblem& problem, const BackwardArguments& arguments);
Status check_memory(const AttentionProblem& problem, const JvpArguments& arguments);

/// Lengths, page numbers and entries, which lie in host memory.
Status check_values(const AttentionProblem& problem, const ForwardArguments& arguments);
Status check_values(const AttentionProblem& problem, const BackwardArguments& arguments);
Status check_values(const AttentionProblem& problem, const JvpArguments& arguments);

}  // namespace strobe::api
