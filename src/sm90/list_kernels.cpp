// SPDX-License-Identifier: Apache-2.0
#include "sm90/list_kernels.h"

#include "gpu/auxiliary/convert_cache_variant.h"
#include "gpu/auxiliary/merge_variant.h"
#include "gpu/variant/architecture.h"
#include "kernels/sm90/forward/smem.h"
#include "sm90/backward_kernels.h"
#include "sm90/cache_conversion.h"
#include "sm90/forward_plan.h"
#include "sm90/forward_variant.h"
#include "sm90/rows_in_format.h"

namespace strobe::sm90 {
namespace {

void list_forward(const AttentionProblem& problem, const DeviceShape& shape, const forward::Config& config,
                  const gpu::Choice& choice, gpu::PackList& list) {
  list.add(forward_variant(config), smem_plan(config).total_bytes);
  const gpu::SplitPlan split = forward_plan(problem, shape, config, choice).split;
  if (split.total_bytes > 0) list.add(gpu::combine_variant(split.combine, gpu::kSm90a), 0);
}

void list_backward(const AttentionProblem& problem, const DeviceShape& shape, const backward::Config& config,
                   const gpu::Choice& choice, gpu::PackList& list) {
  BackwardKernels kernels;
  for_each_kernel(problem, backward_plan(problem, shape, config, choice), kernels, list);
}

Status list_forwards(const AttentionProblem& given, const DeviceShape& shape, const gpu::Choice& choice,
                     gpu::PackList& list) {
  const auto rows = cache_rows_config(given, shape, choice);
  if (rows.has_value()) list_forward(with_rows_of_cache(given), shape, *rows, choice, list);
  const AttentionProblem problem = kernels_problem(given);
  const Result<forward::Config> config = forward_config(problem, shape, choice);
  if (!config.ok()) return rows.has_value() ? Status() : config.status();
  if (!always_shares_values(problem, *config)) list_forward(problem, shape, *config, choice, list);
  const auto aligned = aligned_bias_config(problem, shape, *config);
  if (aligned.has_value()) list_forward(problem, shape, *aligned, choice, list);
  const auto shared = shared_values_config(problem, *config);
  if (shared.has_value()) list_forward(problem, shape, *shared, choice, list);
  if (converts_cache(given)) gpu::list_cache_conversion(given, gpu::kSm90a, list);
  return {};
}

Status list_backwards(const AttentionProblem& problem, const DeviceShape& shape, const gpu::Choice& choice,
                      gpu::PackList& list) {
  const Result<backward::Config> config = backward_config(problem, shape, choice);
  if (!config.ok()) return config.status();
  list_backward(problem, shape, *config, choice, list);
  const auto aligned = aligned_bias_config(problem, *config);
  if (aligned.has_value()) list_backward(problem, shape, *aligned, choice, list);
  return {};
}

}  // namespace

Status list_kernels(const AttentionProblem& problem, const gpu::DeviceShape& shape, const gpu::Choice& choice,
                    gpu::PackList& list) {
  const bool is_forward = problem.pass == Pass::forward;
  return is_forward ? list_forwards(problem, shape, choice, list) : list_backwards(problem, shape, choice, list);
}

}  // namespace strobe::sm90
