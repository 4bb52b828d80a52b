// SPDX-License-Identifier: Apache-2.0
// What the backwards of all GPU engines do around their own kernels.
#pragma once

#include "call/problem.h"
#include "kernels/steps/prepare_backward_params.h"
#include "runtime/driver.h"
#include "strobe/attention.h"

namespace strobe::gpu {

/// The problem without its queries where there are no query heads: keys get zero gradients.
AttentionProblem without_headless_queries(AttentionProblem problem);

/// The lengths of such a problem's sequences: without query heads, lengths of queries mean nothing.
Sequences backward_sequences(const AttentionProblem& problem, const BackwardArguments& arguments);

/// The step's inputs, as a call has them; what an engine chooses is still to be set.
steps::PrepareBackwardParams prepare_params(const AttentionProblem& problem, const BackwardArguments& arguments);

/// Enqueues zeros for the gradients of a bias and of sinks, where there is no row, or no sequence or head.
Status clear_modifier_gradients(const runtime::Driver& driver, const AttentionProblem& problem,
                                const BackwardArguments& arguments, runtime::CUstream stream);

}  // namespace strobe::gpu
