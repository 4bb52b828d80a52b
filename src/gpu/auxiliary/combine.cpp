// SPDX-License-Identifier: Apache-2.0
#include "gpu/auxiliary/combine.h"

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
  runtime::LaunchShape shape = runtime::row_of_blocks(params.tile_count, auxiliary::kCombineThreads, 0, true);
  shape.grid.y = static_cast<unsigned>(combine_blocks_per_tile(config, params.tile_count, params.slot_rows));
  return runtime::launch(*device.driver, kernel.launched_in(context), shape, stream, params);
}

}  // namespace strobe::gpu
