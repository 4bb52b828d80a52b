// SPDX-License-Identifier: Apache-2.0
#include "sm80/backward_kernels.h"

#include "gpu/call/find_kernel.h"
#include "kernels/sm80/backward/smem.h"
#include "sm80/backward_variant.h"

namespace strobe::sm80 {

Result<BackwardKernels> find_backward_kernels(const AttentionProblem& problem, const BackwardPlan& plan,
                                              const runtime::CudaDevice& device, const DeviceShape& shape) {
  const backward::Config& config = plan.config;
  const int smem_bytes = smem_plan(config).total_bytes;
  const gpu::KernelAhead main(true, config, device, smem_bytes, [&] { return backward_variant(config, shape); });
  const gpu::KernelAhead finish(true, config, device, finish_smem_bytes(config),
                                [&] { return finish_variant(config, shape); });
  const gpu::KernelAhead bias(problem.wants_d_bias, config, device, smem_bytes,
                              [&] { return bias_gradient_variant(config, shape); });
  BackwardKernels kernels;
  Status status = gpu::find_shared_kernels(problem, plan.prepare, device, kernels.shared);
  if (status.ok()) status = main.take(kernels.main);
  if (status.ok()) status = finish.take(kernels.finish);
  if (status.ok()) status = bias.take(kernels.bias);
  if (!status.ok()) return status;
  return kernels;
}

}  // namespace strobe::sm80
