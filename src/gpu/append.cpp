// SPDX-License-Identifier: Apache-2.0
#include "gpu/append.h"

#include "gpu/append_launch.h"
#include "gpu/append_variant.h"
#include "gpu/kernel_table.h"
#include "runtime/kernel.h"
#include "runtime/launch.h"

namespace strobe::gpu {

Status append(const AppendArguments& arguments, const Execution& execution, const runtime::CudaDevice& device,
              std::string_view architecture) {
  const Result<AppendLaunch> launch = append_launch(arguments, device.multiprocessors);
  if (!launch.ok()) return launch.status();
  if (launch->blocks == 0) return {};
  static auto& table = *new KernelTable<auxiliary::AppendConfig>;
  const Result<runtime::Kernel> kernel = table.find_or_load(launch->config, device, [&] {
    return runtime::load_kernel(runtime::kernel_store(), append_variant(launch->config, architecture), device, 0);
  });
  if (!kernel.ok()) return kernel.status();
  const runtime::ContextScope context(device);
  if (!context.status().ok()) return context.status();
  return runtime::launch(*device.driver, kernel->launched_in(context.current()),
                         runtime::row_of_blocks(launch->blocks, auxiliary::kAppendThreads),
                         static_cast<runtime::CUstream>(execution.stream), launch->params);
}

}  // namespace strobe::gpu
