// SPDX-License-Identifier: Apache-2.0
#include "sm80/forward.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "gpu/auxiliary/combine.h"
#include "gpu/auxiliary/max_logits.h"
#include "gpu/call/with_workspace.h"
#include "gpu/params/cache.h"
#include "gpu/params/forward.h"
#include "gpu/params/scales.h"
#include "gpu/variant/kernel_table.h"
#include "kernels/sm80/forward/smem.h"
#include "runtime/device.h"
#include "runtime/kernel.h"
#include "runtime/workspace_pool.h"
#include "sm80/engine.h"
#include "sm80/forward_plan.h"
#include "sm80/forward_variant.h"
#include "sm80/supported.h"

namespace strobe::sm80 {
namespace {

using gpu::RowsView;

ForwardScope::Change& scoped_change() {
  thread_local ForwardScope::Change change;
  return change;
}

forward::Params parameters(const AttentionProblem& problem, const ForwardPlan& plan,
                           const ForwardArguments& arguments) {
  auto params = gpu::forward_params<forward::Params>(problem, arguments);
  params.tiles = plan.order;
  params.tile_count = plan.tiles;
  params.by_heads_per_kv = Divisor::of(plan.order.heads / static_cast<int>(problem.heads_kv));
  params.cache = gpu::cache_params(problem, arguments, 0);
  if (problem.stored.given()) {
    params.k_scales = gpu::scale_params(arguments.k_descale, problem.stored.k_rows);
    params.v_scales = gpu::scale_params(arguments.v_descale, problem.stored.v_rows);
  }
  // Copies of nothing name an address all the same.
  if (params.k.data == nullptr) params.k.data = params.o.data;
  if (params.v.data == nullptr) params.v.data = params.o.data;
  return params;
}

Status check_alignments(const ForwardArguments& arguments, std::string_view engine) {
  for (const RowsView& tensor : {RowsView{"q", arguments.q}, RowsView{"k", arguments.k}, RowsView{"v", arguments.v},
                                 RowsView{"o", arguments.o}}) {
    if (Status status = gpu::check_alignment(tensor, engine); !status.ok()) return status;
  }
  return {};
}

/// One problem on one device with its kernel, and where keys are split the kernel that puts their parts together.
class ForwardCall final : public engine::PlannedCall {
 public:
  ForwardCall(const AttentionProblem& problem, const runtime::CudaDevice& device, const DeviceShape& shape,
              const ForwardPlan& plan, const runtime::Kernel& kernel, const runtime::Kernel& combine,
              const Caller& caller)
      : problem_(problem),
        device_(device),
        shape_(shape),
        plan_(plan),
        kernel_(kernel),
        combine_(combine),
        caller_(caller),
        pool_(device, std::max<std::size_t>(sm80::workspace_bytes(plan_), 1)) {}

  std::size_t workspace_bytes() const override { return sm80::workspace_bytes(plan_); }
  DType probability_dtype() const override { return problem_.dtype; }
  std::string explain() const override {
    const std::string engine = caller_.explanation.empty() ? sm80::explain(shape_) : caller_.explanation;
    return engine + explain_kernel(problem_, shape_, plan_);
  }

  /// Enqueues the kernels; waits for nothing, and allocates nothing where the call brings what workspace it needs.
  using PlannedCall::run;
  Status run(const ForwardArguments& arguments, const Execution& execution) const override {
    auto* const stream = static_cast<runtime::CUstream>(execution.stream);
    const runtime::ContextScope context(device_);
    if (!context.status().ok()) return context.status();
    if (Status status = gpu::clear_max_logits(*device_.driver, arguments.max_logits, stream); !status.ok()) {
      return status;
    }
    if (plan_.tiles == 0) return {};
    if (Status status = check_alignments(arguments, caller_.engine); !status.ok()) return status;
    forward::Params params = parameters(problem_, plan_, arguments);
    return gpu::with_workspace(pool_, workspace_bytes(), execution, stream, [&](std::byte* workspace) {
      if (splits(plan_.config)) params.split = gpu::split_params(plan_.split, workspace);
      params.kept = reinterpret_cast<float*>(workspace);  // read by variants that fold
      return launch(context.current(), stream, params);
    });
  }

 private:
  Status launch(runtime::CUcontext context, runtime::CUstream stream, const forward::Params& params) const {
    const runtime::LaunchShape shape =
        runtime::row_of_blocks(plan_.workers, threads_per_block(plan_.config), smem_plan(plan_.config).total_bytes);
    Status status = runtime::launch(*device_.driver, kernel_.launched_in(context), shape, stream, params);
    if (!status.ok() || !splits(plan_.config)) return status;
    const gpu::CombinedTiles tiles{.heads = plan_.order.heads,
                                   .packed_heads = plan_.config.packed_heads,
                                   .m_tiles = plan_.order.m_tiles,
                                   .tiles = plan_.tiles,
                                   .block_m = block_m(plan_.config)};
    return gpu::launch_combine(device_, combine_, context, stream, plan_.split.combine,
                               gpu::combine_params(params, params.split, tiles));
  }

  AttentionProblem problem_;
  const runtime::CudaDevice& device_;
  DeviceShape shape_;
  ForwardPlan plan_;
  runtime::Kernel kernel_;
  runtime::Kernel combine_;  // split schedules
  Caller caller_;
  mutable runtime::WorkspacePool pool_;  // synchronises itself
};

Result<runtime::Kernel> find_kernel(const forward::Config& config, const runtime::CudaDevice& device,
                                    const DeviceShape& shape) {
  static gpu::KernelTable<forward::Config>& table = *new gpu::KernelTable<forward::Config>;
  return table.find_or_load(config, device, [&] {
    return runtime::load_kernel(runtime::kernel_store(), forward_variant(config, shape), device,
                                static_cast<unsigned>(smem_plan(config).total_bytes));
  });
}

}  // namespace

engine::PlannedCallResult plan_forward(const AttentionProblem& problem, const Caller& caller) {
  const Result<const runtime::CudaDevice*> device = runtime::cuda_device(problem.device.index);
  if (!device.ok()) return device.status();
  DeviceShape shape = shape_of(**device);
  if (scoped_change().device) scoped_change().device(shape);
  Result<forward::Config> config = forward_config(problem, shape);
  if (!config.ok()) return config.status();
  if (scoped_change().config) scoped_change().config(*config);
  const Result<runtime::Kernel> kernel = find_kernel(*config, **device, shape);
  if (!kernel.ok()) return kernel.status();
  const ForwardPlan plan = forward_plan(problem, shape, *config);
  Result<runtime::Kernel> combine = runtime::Kernel{};
  if (plan.split.total_bytes > 0) combine = gpu::find_combine(plan.split.combine, **device, architecture_of(shape));
  if (!combine.ok()) return combine.status();
  return engine::make_planned<ForwardCall>(problem, **device, shape, plan, *kernel, *combine, caller);
}

ForwardScope::ForwardScope(Change change) : previous_(std::exchange(scoped_change(), std::move(change))) {}

ForwardScope::~ForwardScope() { scoped_change() = std::move(previous_); }

}  // namespace strobe::sm80
