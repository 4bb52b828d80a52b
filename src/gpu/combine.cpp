// SPDX-License-Identifier: Apache-2.0
#include "gpu/combine.h"

#include "call/arithmetic.h"
#include "gpu/kernel_table.h"
#include "gpu/merge_variant.h"
#include "runtime/launch.h"

namespace strobe::gpu {

Result<runtime::Kernel> find_combine(const auxiliary::CombineConfig& config, const runtime::CudaDevice& device,
                                     std::string_view architecture) {
  static auto& hopper = *new KernelTable<auxiliary::CombineConfig>;
  static auto& others = *new KernelTable<auxiliary::CombineConfig>;
  KernelTable<auxiliary::CombineConfig>& table = architecture.ends_with('a') ? hopper : others;
  return table.find_or_load(config, device, [&] {
    return runtime::load_kernel(runtime::kernel_store(), combine_variant(config, architecture), device, 0);
  });
}

Status launch_combine(const runtime::CudaDevice& device, const runtime::Kernel& kernel, runtime::CUcontext context,
                      runtime::CUstream stream, const auxiliary::CombineConfig& config,
                      const auxiliary::CombineParams& params) {
  const runtime::LaunchShape shape =
      runtime::row_of_blocks(ceil_div(params.jobs, rows_per_block(config)), auxiliary::kCombineThreads, 0, true);
  return runtime::launch(*device.driver, kernel.launched_in(context), shape, stream, params);
}

}  // namespace strobe::gpu
