// SPDX-License-Identifier: Apache-2.0
// What the backwards of all families do around their own kernels.
#pragma once

#include <span>

#include "call/checked.h"
#include "call/problem.h"
#include "kernels/auxiliary/prepare_backward_params.h"
#include "kernels/auxiliary/sink_gradient_params.h"
#include "kernels/score/backward_params.h"
#include "runtime/driver.h"
#include "strobe/attention.h"

namespace strobe::gpu {

/// The lengths of the planned problem's sequences: without query heads, lengths of queries mean nothing.
Sequences backward_sequences(const AttentionProblem& problem, const BackwardArguments& arguments);

/// What a run adds to planned_params(): pointers and strides, but those of the workspace.
void set_tensors(const AttentionProblem& problem, const BackwardArguments& arguments, BackwardParams& params);

/// LSE and D of every row, and zeros where the call wants them; what a family chooses is still to be set. `rule`: of
/// the backward's kernels.
auxiliary::PrepareBackwardParams prepare_params(const AttentionProblem& problem, const BackwardArguments& arguments,
                                                const BackwardParams& params, ScoreRule rule, int block_m);

/// CTAs of that step.
int prepare_ctas(const AttentionProblem& problem, const auxiliary::PrepareBackwardConfig& config,
                 const auxiliary::PrepareBackwardParams& params);

/// The gradient of the bias, whose planes other heads or sequences may share, in rows of `key_tiles` tiles.
BiasGradientParams bias_gradient_params(const AttentionProblem& problem, const BackwardArguments& arguments,
                                        const BackwardParams& params, int key_tiles);

/// `rule`: of the kernels that found the rows of a large LSE.
auxiliary::SinkGradientParams sink_gradient_params(const BackwardArguments& arguments, const BackwardParams& params,
                                                   const ScoreRule& rule, int block_m);

/// Tiles of all sequences and heads, for the gradients of captures, or walks over them. `of_head`: of one.
BiasGradientParams capture_tiles(const AttentionProblem& problem, const BackwardParams& params, Checked of_head);

/// Zeros in the gradients of captures, to which kernels add.
Status clear_capture_gradients(const runtime::Driver& driver, std::span<const TensorView> gradients,
                               runtime::CUstream stream);

/// Enqueues zeros for the gradients of a bias and of sinks, where there is no row, or no sequence or head.
Status clear_modifier_gradients(const runtime::Driver& driver, const AttentionProblem& problem,
                                const BackwardArguments& arguments, runtime::CUstream stream);

}  // namespace strobe::gpu
