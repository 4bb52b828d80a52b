// SPDX-License-Identifier: Apache-2.0
#include "gpu/engine.h"

#include "gpu/auxiliary/append.h"
#include "gpu/auxiliary/merge.h"
#include "gpu/read_back.h"

namespace strobe::gpu {

Status GpuEngine::serves(const Device& device) const {
  const Result<const runtime::CudaDevice*> gpu = runtime::cuda_device(device.index);
  return gpu.ok() ? serves_gpu(**gpu) : gpu.status();
}

Status GpuEngine::merge(const MergeArguments& arguments, const Execution& execution) const {
  const Result<const runtime::CudaDevice*> gpu = runtime::cuda_device(arguments.o.device.index);
  return gpu.ok() ? gpu::merge(arguments, execution, **gpu, architecture(**gpu)) : gpu.status();
}

Status GpuEngine::append(const AppendArguments& arguments, const Execution& execution) const {
  const Result<const runtime::CudaDevice*> gpu = runtime::cuda_device(arguments.k_cache.device.index);
  return gpu.ok() ? gpu::append(arguments, execution, **gpu, architecture(**gpu)) : gpu.status();
}

Status GpuEngine::read_back(const Device& device, void* to, const void* from, std::size_t bytes,
                            const Execution& execution) const {
  const Result<const runtime::CudaDevice*> gpu = runtime::cuda_device(device.index);
  return gpu.ok() ? gpu::read_back(**gpu, to, from, bytes, execution) : gpu.status();
}

}  // namespace strobe::gpu
