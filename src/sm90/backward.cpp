// SPDX-License-Identifier: Apache-2.0
#include "sm90/backward.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "gpu/backward_plan.h"
#include "gpu/backward_steps.h"
#include "gpu/tensor_rows.h"
#include "gpu/with_workspace.h"
#include "kernels/sm90/backward/bias_gradient/config.h"
#include "kernels/sm90/backward/smem.h"
#include "runtime/device.h"
#include "runtime/kernel.h"
#include "runtime/workspace_pool.h"
#include "sm90/backward_kernels.h"
#include "sm90/bias_map.h"
#include "sm90/engine.h"
#include "sm90/tensor_maps.h"

namespace strobe::sm90 {
namespace {

using gpu::RowsView;

BackwardScope::Change& scope_change() {
  thread_local BackwardScope::Change change;
  return change;
}

struct AllMaps {
  backward::TensorMaps main;
  backward::QueryGradientMaps query;
};

Status encode_all(const runtime::Driver& driver, const AttentionProblem& problem, const BackwardPlan& plan,
                  const BackwardArguments& a, AllMaps& maps) {
  const backward::Config& config = plan.config;
  const VarlenBound q_bound{config.rule.varlen, problem.seqlen_q};
  const VarlenBound k_bound{config.rule.varlen, problem.seqlen_k};
  const Box queries{.rows = config.block_m};
  const Box keys{.rows = block_n(config)};
  const Box gradients{.rows = kRowsPerWarpgroup};
  const Box tiles{.rows = backward::kScoreTile};
  const void* memory = problem.total_q * problem.heads_q > 0 ? a.dq.data : a.dk.data;
  struct Item {
    RowsView tensor;
    const VarlenBound& bound;
    Box box;
    TensorMap& map;
  };
  for (const Item& item :
       {Item{{"q", a.q}, q_bound, queries, maps.main.q}, Item{{"k", a.k}, k_bound, keys, maps.main.k},
        Item{{"v", a.v}, k_bound, keys, maps.main.v}, Item{{"d_o", a.d_o}, q_bound, queries, maps.main.d_o},
        Item{{"dk", a.dk}, k_bound, gradients, maps.main.dk}, Item{{"dv", a.dv}, k_bound, gradients, maps.main.dv},
        Item{{"k", a.k}, k_bound, tiles, maps.query.k}, Item{{"dq", a.dq}, q_bound, tiles, maps.query.dq}}) {
    Status status = encode(driver, item.tensor, item.bound, item.box, memory, item.map);
    if (!status.ok()) return status;
  }
  if (config.bias_stages == 0) return {};
  const ConstTensorView& bias = a.modifiers.bias;
  return encode_bias(driver, bias, bias_boxes(problem, bias, config.block_m),
                     kPanelRowBytes / static_cast<int>(size_of(bias.dtype)), runtime::Swizzle::bytes_128,
                     maps.main.bias);
}

/// What a run adds to the plan's parameters: pointers and strides.
backward::Params parameters(const AttentionProblem& problem, const BackwardPlan& plan, const BackwardArguments& a,
                            std::byte* workspace) {
  backward::Params params = plan.params;
  const BackwardWorkspace& offsets = plan.workspace;
  const auto floats = [&](std::size_t offset) { return reinterpret_cast<float*>(workspace + offset); };
  params.lse_log2 = floats(offsets.lse_log2);
  params.d_sum = floats(offsets.d_sum);
  params.row_max = floats(offsets.row_max);
  params.large_rows = reinterpret_cast<unsigned*>(workspace + offsets.large_rows);
  const auto bytes = [&](std::size_t offset) { return reinterpret_cast<unsigned char*>(workspace + offset); };
  params.lse_hi_lo = has_hi_lo_lse(plan.config) ? bytes(offsets.lse_hi_lo) : nullptr;
  params.d_hi_lo = has_hi_lo_d(plan.config) ? bytes(offsets.d_hi_lo) : nullptr;
  params.dq_sum = plan.config.by_roles ? nullptr : floats(offsets.dq_sum);
  params.dq_semaphores = plan.config.ordered ? reinterpret_cast<unsigned*>(workspace + offsets.dq_semaphores) : nullptr;
  params.ds = plan.config.by_roles ? bytes(offsets.ds) : nullptr;
  params.dq_before = plan.config.by_roles ? floats(offsets.dq_before) : nullptr;
  gpu::set_tensors(problem, a, params);
  if (plan.config.bias_stages > 0) {
    params.bias_boxes = bias_boxes(problem, a.modifiers.bias, plan.config.block_m);
  }
  return params;
}

auxiliary::PrepareBackwardParams prepare_parameters(const AttentionProblem& problem, const BackwardPlan& plan,
                                                    const BackwardArguments& a, const backward::Params& params) {
  auxiliary::PrepareBackwardParams prepare =
      gpu::prepare_params(problem, a, params, plan.config.rule, plan.config.block_m);
  prepare.lse_hi_lo = const_cast<unsigned char*>(params.lse_hi_lo);
  prepare.d_hi_lo = const_cast<unsigned char*>(params.d_hi_lo);
  prepare.lse_shift = backward::kProbabilityLog2;
  prepare.lse_factor = has_hi_lo_lse(plan.config) ? 1.0F / params.score.scale_log2 : 0.0F;
  const auto clear = [&](void* from, long long bytes) {
    prepare.zeros = from;
    prepare.zeros_16_bytes = round_up(bytes, 16) / 16;
  };
  if (params.dq_semaphores != nullptr) {
    clear(params.dq_semaphores, 4 * backward::semaphore_count(params.heads, params.query_blocks));
  } else if (params.dq_sum != nullptr) {
    clear(params.dq_sum, 4 * backward::query_gradient_floats(params.heads, params.query_blocks, plan.config.block_m,
                                                             plan.config.head_dim));
  }
  return prepare;
}

/// One problem on one device with its kernels.
class BackwardCall final : public engine::PlannedCall {
 public:
  BackwardCall(const AttentionProblem& problem, const runtime::CudaDevice& device, BackwardPlan plan,
               const BackwardKernels& kernels)
      : problem_(problem),
        device_(device),
        plan_(std::move(plan)),
        kernels_(kernels),
        pool_(device, std::max<std::size_t>(plan_.workspace.total_bytes, 1)) {}

  std::size_t workspace_bytes() const override { return plan_.workspace.total_bytes; }
  DType probability_dtype() const override { return problem_.dtype; }
  std::string explain() const override { return sm90::explain(problem_, plan_); }

  /// Enqueues the kernels; waits for nothing, and allocates nothing where the call brings a workspace.
  using PlannedCall::run;
  Status run(const BackwardArguments& arguments, const Execution& execution) const override {
    const runtime::ContextScope context(device_);
    if (!context.status().ok()) return context.status();
    const Stream stream{static_cast<runtime::CUstream>(execution.stream), context.current()};
    if (plan_.launches.empty()) return clear_modifier_gradients(arguments, stream);
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
    AllMaps maps{};
    Status status = encode_all(*device_.driver, problem_, plan_, arguments, maps);
    if (!status.ok()) return status;
    const backward::Params params = parameters(problem_, plan_, arguments, workspace);
    const bool prepared = params.heads * params.sequences.sequences > 0 && problem_.total_q > 0;
    if (prepared) status = launch_prepare(prepare_parameters(problem_, plan_, arguments, params), stream);
    bool follows = prepared;  // the first kernel waits for all that precedes the call
    for (const BackwardLaunch& part : plan_.launches) {
      if (status.ok()) status = launch_part(maps, params, part, stream, follows);
      follows = true;
    }
    if (!status.ok()) return status;
    if (!prepared) return clear_modifier_gradients(arguments, stream);
    if (problem_.wants_d_bias) status = launch_bias(maps, arguments, params, stream);
    if (status.ok() && problem_.wants_d_sink) status = launch_sink(arguments, params, stream);
    return status;
  }

  /// The gradient of the bias, whose planes other heads or sequences may share.
  Status launch_bias(const AllMaps& maps, const BackwardArguments& arguments, const backward::Params& params,
                     const Stream& stream) const {
    const BiasGradientParams bias =
        gpu::bias_gradient_params(problem_, arguments, params, backward::bias_key_tiles(params.n_blocks));
    return launch(kernels_.bias, std::min(bias.tiles, device_.multiprocessors), backward::kBiasGradientThreads,
                  bias_gradient_smem_plan(plan_.config).total_bytes, true, stream, maps.main, params, bias);
  }

  Status clear_modifier_gradients(const BackwardArguments& arguments, const Stream& stream) const {
    return gpu::clear_modifier_gradients(*device_.driver, problem_, arguments, stream.handle);
  }

  Status launch_sink(const BackwardArguments& arguments, const backward::Params& params, const Stream& stream) const {
    return launch(kernels_.sink, params.heads, auxiliary::kSinkThreads, 0, true, stream,
                  gpu::sink_gradient_params(problem_, arguments, params, plan_.config.block_m));
  }

  /// LSE and D of every row, and zeros where dQ will be summed.
  Status launch_prepare(const auxiliary::PrepareBackwardParams& params, const Stream& stream) const {
    Status status = launch(kernels_.large_rows, gpu::large_row_ctas(problem_, params.backward),
                           auxiliary::kLargeRowsThreads, 0, false, stream, params);
    if (!status.ok()) return status;
    return launch(kernels_.prepare, gpu::prepare_ctas(problem_, plan_.prepare, params), auxiliary::kPrepareThreads, 0,
                  true, stream, params);
  }

  /// dK and dV of some keys, and then what they add to dQ.
  Status launch_part(const AllMaps& maps, backward::Params params, const BackwardLaunch& part, const Stream& stream,
                     bool follows) const {
    const backward::Config& config = plan_.config;
    params.first_head_kv = part.first_head_kv;
    params.first_key_block = part.first_key_block;
    params.key_blocks = part.key_blocks;
    params.items = part.heads_kv * part.key_blocks;
    params.section_heads = std::min(params.section_heads, part.heads_kv);
    Status status = launch(kernels_.main, params.items, threads_per_block(config), smem_plan(config).total_bytes,
                           follows, stream, maps.main, params);
    if (!status.ok() || !plan_.finishes) return status;
    if (config.by_roles) {
      const int groups = query_groups(plan_.query, params.m_blocks) * part.heads_kv * params.heads_per_kv;
      return launch(kernels_.query, groups, threads_per_block(plan_.query), smem_plan(plan_.query).total_bytes, true,
                    stream, maps.query, params);
    }
    return launch(kernels_.query, params.m_blocks * params.heads * params.sequences.batch, backward::kFinishThreads, 0,
                  true, stream, params);
  }

  template <class... Parameters>
  Status launch(const runtime::Kernel& kernel, int blocks, int threads, int smem_bytes, bool overlaps_previous,
                const Stream& stream, const Parameters&... parameters) const {
    const runtime::LaunchShape shape = runtime::row_of_blocks(blocks, threads, smem_bytes, overlaps_previous);
    return runtime::launch(*device_.driver, kernel.launched_in(stream.context), shape, stream.handle, parameters...);
  }

  AttentionProblem problem_;
  const runtime::CudaDevice& device_;
  BackwardPlan plan_;
  BackwardKernels kernels_;
  mutable runtime::WorkspacePool pool_;  // synchronises itself
};

/// A plan whose bias comes by TMA, and what takes its place where a call's bias is not aligned for that.
class BiasedBackwardCall final : public engine::PlannedCall {
 public:
  using Part = std::shared_ptr<const engine::PlannedCall>;
  BiasedBackwardCall(Part aligned, Part any) : aligned_(std::move(aligned)), any_(std::move(any)) {}

  std::size_t workspace_bytes() const override {
    return std::max(aligned_->workspace_bytes(), any_->workspace_bytes());
  }
  DType probability_dtype() const override { return aligned_->probability_dtype(); }
  std::string explain() const override { return aligned_->explain(); }

  using PlannedCall::run;
  Status run(const BackwardArguments& arguments, const Execution& execution) const override {
    return (bias_is_aligned(arguments.modifiers.bias) ? aligned_ : any_)->run(arguments, execution);
  }

 private:
  Part aligned_, any_;
};

engine::PlannedCallResult plan_call(const AttentionProblem& problem, const runtime::CudaDevice& device,
                                    backward::Config config) {
  ScoreGradientLimits limits;
  if (scope_change()) scope_change()(config, limits);
  BackwardPlan plan = backward_plan(problem, {device.multiprocessors, device.l2_bytes}, config, limits);
  const Result<BackwardKernels> kernels = find_backward_kernels(problem, plan, device);
  if (!kernels.ok()) return kernels.status();
  return engine::make_planned<BackwardCall>(problem, device, std::move(plan), *kernels);
}

}  // namespace

engine::PlannedCallResult plan_backward(const AttentionProblem& problem) {
  const AttentionProblem planned = gpu::without_headless_queries(problem);
  const Result<const runtime::CudaDevice*> device = runtime::cuda_device(planned.device.index);
  if (!device.ok()) return device.status();
  const Result<backward::Config> config = backward_config(planned);
  if (!config.ok()) return config.status();
  engine::PlannedCallResult any = plan_call(planned, **device, *config);
  const std::optional<backward::Config> aligned = aligned_bias_config(planned, *config);
  if (!any.ok() || !aligned.has_value()) return any;
  engine::PlannedCallResult call = plan_call(planned, **device, *aligned);
  if (!call.ok()) return call;
  return engine::make_planned<BiasedBackwardCall>(*call, *any);
}

BackwardScope::BackwardScope(Change change) : previous_(std::exchange(scope_change(), std::move(change))) {}
BackwardScope::~BackwardScope() { scope_change() = std::move(previous_); }

}  // namespace strobe::sm90
