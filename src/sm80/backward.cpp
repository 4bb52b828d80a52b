// SPDX-License-Identifier: Apache-2.0
#include "sm80/backward.h"

#include <algorithm>
#include <utility>

#include "call/checked.h"
#include "gpu/backward_plan.h"
#include "gpu/backward_steps.h"
#include "gpu/with_workspace.h"
#include "kernels/sm80/backward/smem.h"
#include "runtime/device.h"
#include "runtime/kernel.h"
#include "runtime/workspace_pool.h"
#include "sm80/backward_kernels.h"
#include "sm80/backward_plan.h"
#include "sm80/engine.h"
#include "sm80/supported.h"

namespace strobe::sm80 {
namespace {

BackwardScope::Change& scoped_backward_change() {
  thread_local BackwardScope::Change change;
  return change;
}

/// What a run adds to the plan's parameters: pointers and strides.
BackwardParams parameters(const AttentionProblem& problem, const BackwardPlan& plan, const BackwardArguments& a,
                          std::byte* workspace) {
  BackwardParams params = plan.params;
  const BackwardWorkspace& offsets = plan.workspace;
  params.lse_log2 = reinterpret_cast<float*>(workspace + offsets.lse_log2);
  params.d_sum = reinterpret_cast<float*>(workspace + offsets.d_sum);
  params.row_max = reinterpret_cast<float*>(workspace + offsets.row_max);
  params.large_rows = reinterpret_cast<unsigned*>(workspace + offsets.large_rows);
  params.dq_sum = reinterpret_cast<float*>(workspace + offsets.dq_sum);
  params.dq_semaphores = plan.config.ordered ? reinterpret_cast<unsigned*>(workspace + offsets.dq_semaphores) : nullptr;
  gpu::set_tensors(problem, a, params);
  return params;
}

/// One problem on one device with its kernels.
class BackwardCall final : public engine::PlannedCall {
 public:
  BackwardCall(const AttentionProblem& problem, const runtime::CudaDevice& device, const DeviceShape& shape,
               const BackwardPlan& plan, const BackwardKernels& kernels)
      : problem_(problem),
        device_(device),
        shape_(shape),
        plan_(plan),
        kernels_(kernels),
        pool_(device, std::max<std::size_t>(plan_.workspace.total_bytes, 1)) {}

  std::size_t workspace_bytes() const override { return plan_.workspace.total_bytes; }
  DType probability_dtype() const override { return problem_.dtype; }
  std::string explain() const override { return sm80::explain(problem_, shape_, plan_); }

  /// Enqueues the kernels; waits for nothing, and allocates nothing where the call brings a workspace.
  using PlannedCall::run;
  Status run(const BackwardArguments& arguments, const Execution& execution) const override {
    const runtime::ContextScope context(device_);
    if (!context.status().ok()) return context.status();
    const Stream stream{static_cast<runtime::CUstream>(execution.stream), context.current()};
    if (plan_.items == 0) {
      return gpu::clear_modifier_gradients(*device_.driver, problem_, arguments, stream.handle);
    }
    if (Status status = gpu::check_alignments(arguments, kEngine); !status.ok()) return status;
    return gpu::with_workspace(pool_, plan_.workspace.total_bytes, execution, stream.handle,
                               [&](std::byte* workspace) { return enqueue(arguments, stream, workspace); });
  }

 private:
  struct Stream {
    runtime::CUstream handle;
    runtime::CUcontext context;
  };

  Status enqueue(const BackwardArguments& arguments, const Stream& stream, std::byte* workspace) const {
    const backward::Config& config = plan_.config;
    const BackwardParams params = parameters(problem_, plan_, arguments, workspace);
    const bool prepared = params.heads * params.sequences.sequences > 0 && problem_.total_q > 0;
    Status status;
    if (prepared) status = launch_prepare(arguments, params, stream);
    if (!status.ok()) return status;
    status = launch(kernels_.main, plan_.items, threads_per_block(config), smem_plan(config).total_bytes, prepared,
                    stream, params);
    if (status.ok() && plan_.query_blocks > 0) {
      status = launch(kernels_.finish, plan_.query_blocks, threads_per_block(config), finish_smem_bytes(config), true,
                      stream, params);
    }
    if (!status.ok()) return status;
    if (!prepared) return gpu::clear_modifier_gradients(*device_.driver, problem_, arguments, stream.handle);
    if (problem_.wants_d_bias) status = launch_bias(arguments, params, stream);
    if (status.ok() && problem_.wants_d_sink) status = launch_sink(arguments, params, stream);
    return status;
  }

  /// LSE and D of every row, and zeros where dQ will be summed.
  Status launch_prepare(const BackwardArguments& arguments, const BackwardParams& params, const Stream& stream) const {
    auxiliary::PrepareBackwardParams prepare =
        gpu::prepare_params(problem_, arguments, params, plan_.config.rule, plan_.config.block_m);
    prepare.zeros = params.dq_sum;
    prepare.zeros_16_bytes = static_cast<long long>(plan_.workspace.zeros_bytes / 16);
    Status status = launch(kernels_.large_rows, gpu::large_row_ctas(problem_, params), auxiliary::kLargeRowsThreads, 0,
                           false, stream, prepare);
    if (!status.ok()) return status;
    return launch(kernels_.prepare, gpu::prepare_ctas(problem_, plan_.prepare, prepare), auxiliary::kPrepareThreads, 0,
                  true, stream, prepare);
  }

  /// The gradient of the bias, whose planes other heads or sequences may share.
  Status launch_bias(const BackwardArguments& arguments, const BackwardParams& params, const Stream& stream) const {
    const BiasGradientParams bias = gpu::bias_gradient_params(problem_, arguments, params, params.n_blocks);
    return launch(kernels_.bias, bias.tiles, threads_per_block(plan_.config), smem_plan(plan_.config).total_bytes, true,
                  stream, params, bias);
  }

  Status launch_sink(const BackwardArguments& arguments, const BackwardParams& params, const Stream& stream) const {
    return launch(kernels_.sink, params.heads, auxiliary::kSinkThreads, 0, true, stream,
                  gpu::sink_gradient_params(problem_, arguments, params, plan_.config.block_m));
  }

  /// `follows`: a kernel of this call comes before it, and where the device can, this one starts while that one ends.
  template <class... Parameters>
  Status launch(const runtime::Kernel& kernel, int blocks, int threads, int smem_bytes, bool follows,
                const Stream& stream, const Parameters&... parameters) const {
    const runtime::LaunchShape shape =
        runtime::row_of_blocks(blocks, threads, smem_bytes, follows && shape_.compute_major >= 9);
    return runtime::launch(*device_.driver, kernel.launched_in(stream.context), shape, stream.handle, parameters...);
  }

  AttentionProblem problem_;
  const runtime::CudaDevice& device_;
  DeviceShape shape_;
  BackwardPlan plan_;
  BackwardKernels kernels_;
  mutable runtime::WorkspacePool pool_;  // synchronises itself
};

}  // namespace

engine::PlannedCallResult plan_backward(const AttentionProblem& problem) {
  const AttentionProblem planned = gpu::without_headless_queries(problem);
  const Result<const runtime::CudaDevice*> device = runtime::cuda_device(planned.device.index);
  if (!device.ok()) return device.status();
  DeviceShape shape = shape_of(**device);
  if (scoped_backward_change().device) scoped_backward_change().device(shape);
  Result<backward::Config> config = backward_config(planned, shape);
  if (!config.ok()) return config.status();
  if (scoped_backward_change().config) scoped_backward_change().config(*config);
  const BackwardPlan plan = backward_plan(planned, shape, *config);
  const Result<BackwardKernels> kernels = find_backward_kernels(planned, plan, **device, shape);
  if (!kernels.ok()) return kernels.status();
  return engine::make_planned<BackwardCall>(planned, **device, shape, plan, *kernels);
}

BackwardScope::BackwardScope(Change change) : previous_(std::exchange(scoped_backward_change(), std::move(change))) {}

BackwardScope::~BackwardScope() { scoped_backward_change() = std::move(previous_); }

}  // namespace strobe::sm80
