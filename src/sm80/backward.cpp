// SPDX-License-Identifier: Apache-2.0
#include "sm80/backward.h"

#include <string>

#include "gpu/call/backward_call.h"
#include "gpu/call/find_kernel.h"
#include "gpu/call/override.h"
#include "gpu/params/captures.h"
#include "gpu/params/score.h"
#include "kernels/sm80/backward/smem.h"
#include "sm80/backward_kernels.h"
#include "sm80/backward_plan.h"
#include "sm80/times.h"

namespace strobe::sm80 {
namespace {

/// What a run adds to the plan's parameters: pointers and strides.
WithTexts<BackwardParams> parameters(const AttentionProblem& problem, const BackwardPlan& plan,
                                     const BackwardArguments& a, std::byte* workspace) {
  WithTexts<BackwardParams> params{{plan.params, gpu::offset_params(a.sequences)}, gpu::captures(a.modifiers.captures)};
  const BackwardWorkspace& offsets = plan.workspace;
  gpu::set_rows(offsets, workspace, params);
  params.dq_sum = reinterpret_cast<float*>(workspace + offsets.dq_sum);
  params.dq_semaphores = plan.config.ordered ? reinterpret_cast<unsigned*>(workspace + offsets.dq_semaphores) : nullptr;
  gpu::set_tensors(problem, a, params);
  return params;
}

class Backward final : public gpu::BackwardCall {
 public:
  Backward(const gpu::Request& request, const gpu::SharedBackwardLaunches& shared, const BackwardPlan& plan,
           const BackwardKernels& kernels)
      : BackwardCall(request, shared), plan_(plan), kernels_(kernels) {}

 private:
  std::string explain_plan() const override { return sm80::explain(problem(), shape(), plan_); }

  gpu::PlannedWork work() const override { return backward_work(problem(), shape(), plan_); }

  Status enqueue(const BackwardArguments& arguments, const gpu::CallStream& stream,
                 std::byte* workspace) const override {
    const WithTexts<BackwardParams> params = parameters(problem(), plan_, arguments, workspace);
    auxiliary::PrepareBackwardParams prepare = prepare_params(arguments, params);
    prepare.zeros = params.dq_sum;
    prepare.zeros_16_bytes = static_cast<long long>(plan_.workspace.zeros_bytes / 16);
    return enqueue_around(
        arguments, prepare, stream, [&](bool follows) { return launch_main(params, stream, follows); },
        [&] { return launch_bias(arguments, params, stream); },
        [&] { return launch_captures(arguments, params, stream); });
  }

  /// dK and dV, and then dQ from its sums.
  Status launch_main(const WithTexts<BackwardParams>& params, const gpu::CallStream& stream, bool follows) const {
    const backward::Config& config = plan_.config;
    Status status = launch(kernels_.main, plan_.items, threads_per_block(config), smem_plan(config).total_bytes,
                           follows, stream, params);
    if (!status.ok() || plan_.query_blocks == 0) return status;
    return launch(kernels_.finish, plan_.query_blocks, threads_per_block(config), finish_smem_bytes(config), true,
                  stream, params);
  }

  /// The gradient of the bias, whose planes other heads or sequences may share.
  Status launch_bias(const BackwardArguments& arguments, const WithTexts<BackwardParams>& params,
                     const gpu::CallStream& stream) const {
    const BiasGradientParams bias = gpu::bias_gradient_params(problem(), arguments, params, params.n_blocks);
    return launch(kernels_.bias, bias.tiles, threads_per_block(plan_.config), smem_plan(plan_.config).total_bytes, true,
                  stream, params, bias);
  }

  Status launch_captures(const BackwardArguments& arguments, const WithTexts<BackwardParams>& params,
                         const gpu::CallStream& stream) const {
    const BiasGradientParams tiles = gpu::capture_tiles(problem(), params, Checked(params.m_blocks) * params.n_blocks);
    backward::Config config = plan_.config;
    config.captures = true;
    return launch(kernels_.captures, tiles.tiles, threads_per_block(config),
                  smem_plan(config).total_bytes + diagonal_bytes(config), true, stream, params, tiles,
                  gpu::captures(arguments.d_captures));
  }

  BackwardPlan plan_;
  BackwardKernels kernels_;
};

}  // namespace

engine::PlannedCallResult plan_backward(const gpu::Request& request) {
  const Result<backward::Config> config = backward_config(request.problem, request.shape, request.choice.choice);
  if (!config.ok()) return config.status();
  const BackwardPlan plan =
      backward_plan(request.problem, request.shape, gpu::overridden(*config), request.choice.choice);
  BackwardKernels kernels;
  gpu::FindKernels find(request.device);
  for_each_kernel(request.problem, request.shape, plan, kernels, find);
  if (Status status = find.take(); !status.ok()) return status;
  const gpu::SharedBackwardLaunches shared = gpu::shared_launches(plan, plan.items > 0, kernels.shared);
  return engine::make_planned<Backward>(request, shared, plan, kernels);
}

}  // namespace strobe::sm80
