// SPDX-License-Identifier: Apache-2.0
#include "ampere/backward.h"

#include <algorithm>
#include <utility>

#include "ampere/backward_kernels.h"
#include "ampere/backward_plan.h"
#include "ampere/engine.h"
#include "ampere/supported.h"
#include "gpu/backward_steps.h"
#include "gpu/score_params.h"
#include "gpu/tensor_rows.h"
#include "gpu/with_workspace.h"
#include "kernels/ampere/backward/smem.h"
#include "kernels/steps/sink_gradient_params.h"
#include "runtime/device.h"
#include "runtime/kernel.h"
#include "runtime/workspace_pool.h"

namespace strobe::ampere {
namespace {

using gpu::RowsView;

BackwardScope::Change& scoped_backward_change() {
  thread_local BackwardScope::Change change;
  return change;
}

Status check_alignments(const BackwardArguments& a) {
  for (const RowsView& tensor :
       {RowsView{"q", a.q}, RowsView{"k", a.k}, RowsView{"v", a.v}, RowsView{"o", a.o}, RowsView{"d_o", a.d_o},
        RowsView{"dq", a.dq}, RowsView{"dk", a.dk}, RowsView{"dv", a.dv}}) {
    if (Status status = gpu::check_alignment(tensor, kEngine); !status.ok()) return status;
  }
  return {};
}

/// What a run adds to the plan's parameters: pointers and strides.
backward::Params parameters(const AttentionProblem& problem, const BackwardPlan& plan, const BackwardArguments& a,
                            std::byte* workspace) {
  backward::Params params = plan.params;
  const BackwardWorkspace& offsets = plan.workspace;
  params.lse_log2 = reinterpret_cast<float*>(workspace + offsets.lse_log2);
  params.d_sum = reinterpret_cast<float*>(workspace + offsets.d_sum);
  params.dq_sum = reinterpret_cast<float*>(workspace + offsets.dq_sum);
  params.turns = plan.config.ordered ? reinterpret_cast<unsigned*>(workspace + offsets.turns) : nullptr;
  params.q = gpu::rows_of({"q", a.q});
  params.k = gpu::rows_of({"k", a.k});
  params.v = gpu::rows_of({"v", a.v});
  params.d_o = gpu::rows_of({"d_o", a.d_o});
  params.dq = gpu::rows_of({"dq", a.dq});
  params.dk = gpu::rows_of({"dk", a.dk});
  params.dv = gpu::rows_of({"dv", a.dv});
  params.sequences = gpu::sequence_params(problem, gpu::backward_sequences(problem, a));
  params.blocks = gpu::block_mask_params(problem, a.modifiers.block_mask);
  params.score = gpu::score_params(problem, a.modifiers, a.random);
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
  std::string explain() const override { return ampere::explain(problem_, shape_, plan_); }

  /// Enqueues the kernels; waits for nothing, and allocates nothing where the call brings a workspace.
  using PlannedCall::run;
  Status run(const BackwardArguments& arguments, const Execution& execution) const override {
    const runtime::ContextScope context(device_);
    if (!context.status().ok()) return context.status();
    const Stream stream{static_cast<runtime::CUstream>(execution.stream), context.current()};
    if (plan_.items == 0) {
      return gpu::clear_modifier_gradients(*device_.driver, problem_, arguments, stream.handle);
    }
    if (Status status = check_alignments(arguments); !status.ok()) return status;
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
    const backward::Params params = parameters(problem_, plan_, arguments, workspace);
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
  Status launch_prepare(const BackwardArguments& arguments, const backward::Params& params,
                        const Stream& stream) const {
    steps::PrepareBackwardParams prepare = gpu::prepare_params(problem_, arguments);
    prepare.lse_log2 = const_cast<float*>(params.lse_log2);
    prepare.d_sum = const_cast<float*>(params.d_sum);
    prepare.zeros = params.dq_sum;
    prepare.zeros_16_bytes = static_cast<long long>(plan_.workspace.zeros_bytes / 16);
    prepare.block_m = plan_.config.block_m;
    prepare.m_blocks = params.m_blocks;
    prepare.query_blocks = params.query_blocks;
    const int groups = steps::prepare_groups(plan_.prepare, params.m_blocks, prepare.block_m);
    return launch(kernels_.prepare, groups * params.heads * params.sequences.sequences, steps::kPrepareThreads, 0,
                  false, stream, prepare);
  }

  /// The gradient of the bias, whose planes other heads or sequences may share.
  Status launch_bias(const BackwardArguments& arguments, const backward::Params& params, const Stream& stream) const {
    const TensorView& d_bias = arguments.d_bias;
    const bool per_batch = problem_.modifiers.bias_per_batch;
    const bool per_head = problem_.modifiers.bias_per_head;
    const backward::BiasGradientParams bias{.data = static_cast<float*>(d_bias.data),
                                            .batch_stride = d_bias.strides[0],
                                            .head_stride = d_bias.strides[1],
                                            .row_stride = d_bias.strides[2],
                                            .per_batch = per_batch ? 1 : 0,
                                            .per_head = per_head ? 1 : 0,
                                            .heads = per_head ? params.heads : 1};
    const std::int64_t planes = (per_batch ? problem_.batch : 1) * bias.heads;
    return launch(kernels_.bias, static_cast<int>(planes * params.m_blocks * params.n_blocks),
                  threads_per_block(plan_.config), smem_plan(plan_.config).total_bytes, true, stream, params, bias);
  }

  Status launch_sink(const BackwardArguments& arguments, const backward::Params& params, const Stream& stream) const {
    const steps::SinkGradientParams sink{.lse_log2 = params.lse_log2,
                                         .d_sum = params.d_sum,
                                         .sink = params.score.sink,
                                         .d_sink = static_cast<float*>(arguments.d_sink.data),
                                         .rows = static_cast<long long>(params.query_blocks) * plan_.config.block_m};
    return launch(kernels_.sink, params.heads, steps::kSinkThreads, 0, true, stream, sink);
  }

  /// `follows`: a kernel of this call comes before it, and where the device can, this one starts while that one ends.
  template <class... Parameters>
  Status launch(const runtime::Kernel& kernel, int blocks, int threads, int smem_bytes, bool follows,
                const Stream& stream, const Parameters&... parameters) const {
    const runtime::LaunchShape shape{.grid = {.x = static_cast<unsigned>(blocks)},
                                     .block = {.x = static_cast<unsigned>(threads)},
                                     .cluster = {},
                                     .dynamic_shared_bytes = static_cast<unsigned>(smem_bytes),
                                     .overlaps_previous = follows && shape_.compute_major >= 9};
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

}  // namespace strobe::ampere
