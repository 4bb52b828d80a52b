// SPDX-License-Identifier: Apache-2.0
#include "sm80/forward.h"

#include <string>

#include "gpu/call/find_kernel.h"
#include "gpu/call/forward_call.h"
#include "gpu/call/override.h"
#include "gpu/params/cache.h"
#include "gpu/params/forward.h"
#include "gpu/params/scales.h"
#include "kernels/sm80/forward/smem.h"
#include "sm80/forward_plan.h"
#include "sm80/forward_variant.h"
#include "sm80/times.h"

namespace strobe::sm80 {
namespace {

WithTexts<forward::Params> parameters(const AttentionProblem& problem, const ForwardPlan& plan,
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
  return params;
}

class Forward final : public gpu::ForwardCall {
 public:
  Forward(const gpu::Request& request, const gpu::ForwardLaunch& launch, const ForwardPlan& plan)
      : ForwardCall(request, launch), plan_(plan) {}

 private:
  std::string explain_plan() const override { return sm80::explain(problem(), shape(), plan_); }

  gpu::PlannedWork work() const override { return forward_work(problem(), shape(), plan_); }

  Status enqueue(const ForwardArguments& arguments, const gpu::CallStream& stream,
                 std::byte* workspace) const override {
    WithTexts<forward::Params> params = parameters(problem(), plan_, arguments);
    params.kept = reinterpret_cast<float*>(workspace);  // read by variants that fold
    if (!splits()) return launch_main(stream, params);
    params.split = split_params(workspace);
    const Status status = launch_main(stream, params);
    return status.ok() ? combine(params, params.split, stream) : status;
  }

  ForwardPlan plan_;
};

}  // namespace

engine::PlannedCallResult plan_forward(const gpu::Request& request) {
  const Result<forward::Config> chosen = forward_config(request.problem, request.shape, request.choice.choice);
  if (!chosen.ok()) return chosen.status();
  const forward::Config config = gpu::overridden(*chosen);
  const ForwardPlan plan = forward_plan(request.problem, request.shape, config, request.choice.choice);
  gpu::ForwardLaunch launch;
  launch.workers = plan.workers;
  launch.threads = threads_per_block(config);
  launch.smem_bytes = smem_plan(config).total_bytes;
  launch.overlaps_previous = overlaps_previous(config);
  launch.tiles = {plan.order.heads, config.packed_heads, plan.order.m_tiles, plan.tiles, block_m(config)};
  launch.split = plan.split;
  launch.workspace_bytes = workspace_bytes(plan);
  const Result<runtime::Kernel> kernel = gpu::find_kernel(config, request.device, launch.smem_bytes,
                                                          [&] { return forward_variant(config, request.shape); });
  if (!kernel.ok()) return kernel.status();
  launch.kernel = *kernel;
  return gpu::make_forward<Forward>(request, launch, plan);
}

}  // namespace strobe::sm80
