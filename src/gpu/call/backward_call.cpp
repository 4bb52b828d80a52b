// SPDX-License-Identifier: Apache-2.0
#include "gpu/call/backward_call.h"

#include "gpu/auxiliary/exact_captures.h"
#include "gpu/params/rows.h"
#include "gpu/plan/backward_plan.h"

namespace strobe::gpu {

BackwardCall::BackwardCall(const Request& request, const SharedBackwardLaunches& launch)
    : Call(request, launch.workspace_bytes), launch_(launch) {}

Status BackwardCall::run(const BackwardArguments& arguments, const Execution& execution) const {
  const runtime::ContextScope context(device());
  if (!context.status().ok()) return context.status();
  const CallStream stream{static_cast<runtime::CUstream>(execution.stream), context.current()};
  if (!sums_captures_exactly(problem())) {  // else sums begin as zeros
    const Status status = clear_capture_gradients(*device().driver, arguments.d_captures, stream.handle);
    if (!status.ok()) return status;
  }
  if (!launch_.computes) return clear_modifier_gradients(arguments, stream);
  Status status = check_alignments(arguments);
  if (!status.ok()) return status;
  return with_workspace(execution, stream, [&](std::byte* workspace) { return enqueue(arguments, stream, workspace); });
}

auxiliary::PrepareBackwardParams BackwardCall::prepare_params(const BackwardArguments& arguments,
                                                              const BackwardParams& params) const {
  return gpu::prepare_params(problem(), arguments, params, launch_.rule, launch_.block_m);
}

Status BackwardCall::launch_prepare(const auxiliary::PrepareBackwardParams& params, const CallStream& stream) const {
  const bool normalized = launch_.rule.normalized;
  Status status;
  if (normalized) {
    status = launch(launch_.kernels.large_rows, large_row_ctas(problem(), params.backward),
                    auxiliary::kLargeRowsThreads, 0, false, stream, params);
  }
  if (!status.ok()) return status;
  return launch(launch_.kernels.prepare, prepare_ctas(problem(), launch_.prepare, params), auxiliary::kPrepareThreads,
                0, normalized, stream, params);
}

Status BackwardCall::launch_sink(const BackwardArguments& arguments, const BackwardParams& params,
                                 const CallStream& stream) const {
  return launch(launch_.kernels.sink, params.heads, auxiliary::kSinkThreads, 0, true, stream,
                sink_gradient_params(arguments, params, launch_.rule, launch_.block_m));
}

Status BackwardCall::clear_modifier_gradients(const BackwardArguments& arguments, const CallStream& stream) const {
  return gpu::clear_modifier_gradients(*device().driver, problem(), arguments, stream.handle);
}

}  // namespace strobe::gpu
