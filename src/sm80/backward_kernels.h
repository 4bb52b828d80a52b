// SPDX-License-Identifier: Apache-2.0
// The kernels of a backward.
#pragma once

#include "gpu/call/backward_call.h"
#include "gpu/variant/architecture.h"
#include "kernels/sm80/backward/smem.h"
#include "runtime/kernel.h"
#include "sm80/backward_plan.h"
#include "sm80/backward_variant.h"

namespace strobe::sm80 {

/// The kernels of one plan.
struct BackwardKernels {
  runtime::Kernel main;
  runtime::Kernel finish;
  runtime::Kernel bias;      // where the gradient of the bias is wanted
  runtime::Kernel captures;  // likewise of captures
  gpu::SharedBackwardKernels shared;
};

/// visit(configuration, bytes of dynamic shared memory, what makes the variant, the kernel's place in `kernels`) for
/// each kernel that the plan needs.
template <class Visit>
void for_each_kernel(const AttentionProblem& problem, const DeviceShape& shape, const BackwardPlan& plan,
                     BackwardKernels& kernels, Visit& visit) {
  const backward::Config& config = plan.config;
  const int smem_bytes = smem_plan(config).total_bytes;
  visit(config, smem_bytes, [=] { return backward_variant(config, shape); }, kernels.main);
  visit(config, finish_smem_bytes(config), [=] { return finish_variant(config, shape); }, kernels.finish);
  if (problem.wants_d_bias) {
    visit(config, smem_bytes, [=] { return bias_gradient_variant(config, shape); }, kernels.bias);
  }
  if (problem.expression.gradients != 0) {
    backward::Config gradient = config;
    gradient.captures = true;
    visit(
        gradient, smem_bytes + diagonal_bytes(gradient), [=] { return capture_gradient_variant(gradient, shape); },
        kernels.captures);
  }
  gpu::for_each_shared_kernel(problem, plan.prepare, gpu::architecture_of(shape), kernels.shared, visit);
}

}  // namespace strobe::sm80
