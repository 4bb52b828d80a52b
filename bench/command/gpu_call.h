// SPDX-License-Identifier: Apache-2.0
// A call on a GPU, as strobe bench repeats it.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "gpu/mirrored_call.h"
#include "gpu/stream.h"
#include "strobe/plan.h"

namespace strobe::program {

/// Enqueues a plan of the call on copies of its tensors in the device's memory, which live as long as the function; so
/// must `stream`. The Status of the copies or of the plan.
template <class Arguments>
Result<std::function<Status()>> gpu_call(const Arguments& host, const AttentionOptions& options,
                                         const Execution& execution, const runtime::CudaDevice& device,
                                         const gpu::Stream& stream) {
  Result<gpu::MirroredCall<Arguments>> copied = gpu::MirroredCall<Arguments>::make(host, device);
  if (!copied.ok()) return copied.status();
  const auto mirrored = std::make_shared<const gpu::MirroredCall<Arguments>>(std::move(*copied));
  const Result<Plan> plan = make_plan(mirrored->arguments(), options, execution);
  if (!plan.ok()) return plan.status();
  return std::function<Status()>(
      [mirrored, plan = *plan, handle = stream.get()] { return plan.run(mirrored->arguments(), {.stream = handle}); });
}

}  // namespace strobe::program
