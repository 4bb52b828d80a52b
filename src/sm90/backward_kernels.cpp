// SPDX-License-Identifier: Apache-2.0
#include "sm90/backward_kernels.h"

#include <future>
#include "gpu/call/find_kernel.h"
#include "kernels/sm90/backward/bias_gradient/config.h"
#include "kernels/sm90/backward/smem.h"
#include "sm90/backward_variant.h"

namespace strobe::sm90 {

Result<BackwardKernels> find_backward_kernels(const AttentionProblem& problem, const BackwardPlan& plan,
                                              const runtime::CudaDevice& device) {
  const bool by_roles = plan.config.by_roles;
  const backward::Config gradient = bias_gradient_config(plan.config);
  const backward::Config sums = query_sums_config(plan.config);
  const gpu::KernelAhead main(true, plan.config, device, smem_plan(plan.config).total_bytes,
                              [&] { return backward_variant(plan.config); });
  const gpu::KernelAhead of_scores(plan.finishes && by_roles, plan.query, device, smem_plan(plan.query).total_bytes,
                                   [&] { return query_gradient_variant(plan.query); });
  const gpu::KernelAhead of_sums(plan.finishes && !by_roles, sums, device, 0, [&] { return finish_variant(sums); });
  const gpu::KernelAhead keys(plan.config.shares_keys, plan.config, device, 0,
                              [&] { return finish_keys_variant(plan.config); });
  const gpu::KernelAhead bias(problem.wants_d_bias, gradient, device, bias_gradient_smem_plan(gradient).total_bytes,
                              [&] { return bias_gradient_variant(gradient); });
  BackwardKernels kernels;
  Status status = gpu::find_shared_kernels(problem, plan.prepare, device, kernels.shared);
  if (status.ok()) status = main.take(kernels.main);
  if (status.ok()) status = by_roles ? of_scores.take(kernels.query) : of_sums.take(kernels.query);
  if (status.ok()) status = keys.take(kernels.keys);
  if (status.ok()) status = bias.take(kernels.bias);
  if (!status.ok()) return status;
  return kernels;
}

}  // namespace strobe::sm90
