// SPDX-License-Identifier: Apache-2.0
#include "gpu/auxiliary/combine.h"

#include "call/arithmetic.h"
#include "gpu/auxiliary/merge_variant.h"
#include "gpu/call/find_kernel.h"
#include "gpu/variant/architecture.h"
#include "runtime/launch.h"

namespace strobe::gpu {

Result<runtime::Kernel> find_combine(const auxiliary::CombineConfig& config, const runtime::CudaDevice& device) {
  return find_kernel(config, device, 0, [&] { return combine_variant(config, architecture_of(device)); });
}

Status launch_combine(const runtime::CudaDevice& device, const runtime::Kernel& kernel, runtime::CUcontext context,
                      runtime::CUstream stream, const auxiliary::CombineConfig& config,
                      const auxiliary::CombineParams& params) {
  const runtime::LaunchShape shape =
      runtime::row_of_blocks(ceil_div(params.jobs, rows_per_block(config)), auxiliary::kCombineThreads, 0, true);
  return runtime::launch(*device.driver, kernel.launched_in(context), shape, stream, params);
}

}  // namespace strobe::gpu
