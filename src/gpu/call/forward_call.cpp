// SPDX-License-Identifier: Apache-2.0
#include "gpu/call/forward_call.h"

#include "gpu/auxiliary/max_logits.h"
#include "gpu/params/rows.h"

namespace strobe::gpu {

ForwardCall::ForwardCall(const Request& request, const ForwardLaunch& launch)
    : Call(request, launch.workspace_bytes), launch_(launch) {}

DType ForwardCall::probability_dtype() const { return problem().dtype == DType::int8 ? DType::uint8 : problem().dtype; }

Status ForwardCall::run(const ForwardArguments& arguments, const Execution& execution) const {
  const runtime::ContextScope context(device());
  if (!context.status().ok()) return context.status();
  const CallStream stream{static_cast<runtime::CUstream>(execution.stream), context.current()};
  Status status = clear_max_logits(*device().driver, arguments.max_logits, stream.handle);
  if (!status.ok() || launch_.tiles.tiles == 0) return status;
  status = check_alignments(problem(), arguments);
  if (!status.ok()) return status;
  return with_workspace(execution, stream, [&](std::byte* workspace) { return enqueue(arguments, stream, workspace); });
}

}  // namespace strobe::gpu
