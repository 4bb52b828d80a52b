// SPDX-License-Identifier: Apache-2.0
// The kernels of a backward.
#pragma once

#include <string>

#include "call/problem.h"
#include "gpu/call/backward_call.h"
#include "gpu/variant/architecture.h"
#include "kernels/sm90/backward/bias_gradient/config.h"
#include "kernels/sm90/backward/wide/smem.h"
#include "runtime/kernel.h"
#include "sm90/backward_plan.h"
#include "sm90/backward_variant.h"

namespace strobe::sm90 {

/// The kernels of one plan.
struct BackwardKernels {
  runtime::Kernel main;
  runtime::Kernel query;     // dQ, of its sums or of dS
  runtime::Kernel keys;      // dK and dV, where items share keys
  runtime::Kernel bias;      // where the gradient of the bias is wanted
  runtime::Kernel captures;  // likewise of captures
  gpu::SharedBackwardKernels shared;
};

/// visit(configuration, bytes of dynamic shared memory, what makes the variant, the kernel's place in `kernels`) for
/// each kernel that the plan needs.
template <class Visit>
void for_each_kernel(const AttentionProblem& problem, const BackwardPlan& plan, BackwardKernels& kernels,
                     Visit& visit) {
  const backward::Config& config = plan.config;
  visit(config, main_smem_bytes(config), [=] { return backward_variant(config); }, kernels.main);
  if (plan.finishes && config.by_roles) {
    const backward::QueryGradientConfig& query = plan.query;
    visit(query, smem_plan(query).total_bytes, [=] { return query_gradient_variant(query); }, kernels.query);
  } else if (plan.finishes) {
    const backward::Config sums = query_sums_config(config);
    visit(sums, 0, [=] { return finish_variant(sums); }, kernels.query);
  }
  if (config.shares_keys) visit(config, 0, [=] { return finish_keys_variant(config); }, kernels.keys);
  if (problem.wants_d_bias) {
    const backward::Config gradient = bias_gradient_config(config);
    visit(
        gradient, bias_gradient_smem_plan(gradient).total_bytes, [=] { return bias_gradient_variant(gradient); },
        kernels.bias);
  }
  if (problem.expression.gradients != 0) {
    const backward::Config gradient = capture_gradient_config(config, problem.deterministic);
    visit(
        gradient, bias_gradient_smem_plan(gradient).total_bytes, [=] { return capture_gradient_variant(gradient); },
        kernels.captures);
  }
  gpu::for_each_shared_kernel(problem, plan.prepare, std::string(gpu::kSm90a), kernels.shared, visit);
}

}  // namespace strobe::sm90
