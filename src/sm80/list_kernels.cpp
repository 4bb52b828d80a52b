// SPDX-License-Identifier: Apache-2.0
#include "sm80/list_kernels.h"

#include "gpu/auxiliary/merge_variant.h"
#include "gpu/variant/architecture.h"
#include "kernels/sm80/forward/smem.h"
#include "sm80/backward_kernels.h"
#include "sm80/forward_plan.h"
#include "sm80/forward_variant.h"

namespace strobe::sm80 {
namespace {

Status list_forward(const AttentionProblem& problem, const DeviceShape& shape, const gpu::Choice& choice,
                    gpu::PackList& list) {
  const Result<forward::Config> config = forward_config(problem, shape, choice);
  if (!config.ok()) return config.status();
  list.add(forward_variant(*config, shape), smem_plan(*config).total_bytes);
  const gpu::SplitPlan split = forward_plan(problem, shape, *config, choice).split;
  if (split.total_bytes > 0) list.add(gpu::combine_variant(split.combine, gpu::architecture_of(shape)), 0);
  return {};
}

Status list_backward(const AttentionProblem& problem, const DeviceShape& shape, const gpu::Choice& choice,
                     gpu::PackList& list) {
  const Result<backward::Config> config = backward_config(problem, shape, choice);
  if (!config.ok()) return config.status();
  BackwardKernels kernels;
  for_each_kernel(problem, shape, backward_plan(problem, shape, *config, choice), kernels, list);
  return {};
}

}  // namespace

Status list_kernels(const AttentionProblem& problem, const gpu::DeviceShape& shape, const gpu::Choice& choice,
                    gpu::PackList& list) {
  const bool is_forward = problem.pass == Pass::forward;
  return is_forward ? list_forward(problem, shape, choice, list) : list_backward(problem, shape, choice, list);
}

}  // namespace strobe::sm80
