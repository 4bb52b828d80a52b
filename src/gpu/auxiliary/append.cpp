// SPDX-License-Identifier: Apache-2.0
#include "gpu/auxiliary/append.h"

#include "gpu/auxiliary/append_launch.h"
#include "gpu/auxiliary/append_variant.h"
#include "gpu/call/find_kernel.h"
#include "gpu/variant/architecture.h"
#include "runtime/launch.h"

namespace strobe::gpu {

Status append(const AppendArguments& arguments, const Execution& execution, const runtime::CudaDevice& device) {
  const Result<AppendLaunch> launch = append_launch(arguments, device.multiprocessors);
  if (!launch.ok()) return launch.status();
  if (launch->blocks == 0) return {};
  const Result<runtime::Kernel> kernel =
      find_kernel(launch->config, device, 0, [&] { return append_variant(launch->config, architecture_of(device)); });
  if (!kernel.ok()) return kernel.status();
  const runtime::ContextScope context(device);
  if (!context.status().ok()) return context.status();
  return runtime::launch(*device.driver, kernel->launched_in(context.current()),
                         runtime::row_of_blocks(launch->blocks, auxiliary::kAppendThreads),
                         static_cast<runtime::CUstream>(execution.stream), launch->params);
}

}  // namespace strobe::gpu
