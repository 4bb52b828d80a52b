// SPDX-License-Identifier: Apache-2.0
// The kernels of a backward: from the pack, from the user's cache, or compiled.
#pragma once

#include "call/problem.h"
#include "gpu/call/backward_call.h"
#include "runtime/device.h"
#include "runtime/kernel.h"
#include "sm90/backward_plan.h"

namespace strobe::sm90 {

/// The kernels of one plan.
struct BackwardKernels {
  runtime::Kernel main;
  runtime::Kernel query;  // dQ, of its sums or of dS
  runtime::Kernel keys;   // dK and dV, where items share keys
  runtime::Kernel bias;   // where the gradient of the bias is wanted
  gpu::SharedBackwardKernels shared;
};

Result<BackwardKernels> find_backward_kernels(const AttentionProblem& problem, const BackwardPlan& plan,
                                              const runtime::CudaDevice& device);

}  // namespace strobe::sm90
