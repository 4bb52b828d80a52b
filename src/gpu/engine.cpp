// SPDX-License-Identifier: Apache-2.0
#include "gpu/engine.h"

#include <algorithm>

#include "engine/captured_options.h"
#include "gpu/auxiliary/append.h"
#include "gpu/auxiliary/coded_rows.h"
#include "gpu/auxiliary/exact_captures.h"
#include "gpu/auxiliary/merge.h"
#include "gpu/auxiliary/quantize.h"
#include "gpu/auxiliary/text_blocks.h"
#include "gpu/choose_family.h"
#include "gpu/params/score.h"
#include "gpu/plan/supported.h"
#include "gpu/read_back.h"
#include "gpu/sparse/sparse.h"

namespace strobe::gpu {
namespace {

engine::PlannedCallResult planned(const AttentionProblem& problem, const Execution& execution, FamilyPlan plan) {
  if (Status status = check_texts(problem); !status.ok()) return status;
  const AttentionProblem own = planned_problem(problem);
  if (Status status = check_exact_captures(own); !status.ok()) return status;
  const Result<const runtime::CudaDevice*> gpu = runtime::cuda_device(problem.device.index);
  if (!gpu.ok()) return gpu.status();
  const engine::PlannedCallResult call = plan_by_family(own, **gpu, engine::wanted_kernels(execution), plan);
  return engine::with_captured_options(without_idle_softcap(problem),
                                       after_text_blocks(own, **gpu, with_exact_captures(own, **gpu, call)));
}

class GpuEngine final : public engine::Implementation {
 public:
  Engine id() const override { return Engine::gpu; }

  DeviceType device_type() const override { return DeviceType::cuda; }

  Status serves(const Device& device) const override {
    const Result<const runtime::CudaDevice*> gpu = runtime::cuda_device(device.index);
    if (!gpu.ok()) return gpu.status();
    Status status;
    for (const Family* const family : families()) {
      status = family->serves(**gpu);
      if (status.ok()) return status;
    }
    return status;  // that of the last one, which serves the most devices
  }

  engine::PlannedCallResult plan_forward(const AttentionProblem& problem, const Execution& execution) const override {
    return planned(problem, execution, &Family::plan_forward);
  }

  engine::PlannedCallResult plan_backward(const AttentionProblem& problem, const Execution& execution) const override {
    return planned(problem, execution, &Family::plan_backward);
  }

  Status quantize(const QuantizeArguments& arguments, const QuantizeOptions& options,
                  const Execution& execution) const override {
    const Result<const runtime::CudaDevice*> gpu = runtime::cuda_device(arguments.q.device.index);
    if (!gpu.ok()) return gpu.status();
    const auto takes = [&](const Family* family) { return family->takes_eight_bit() && family->serves(**gpu).ok(); };
    if (std::ranges::none_of(families(), takes)) {
      return unsupported("{} has compute capability {}.{}: the gpu engine has no 8-bit kernels for it", (*gpu)->name,
                         (*gpu)->compute_major, (*gpu)->compute_minor);
    }
    return gpu::quantize(arguments, options, execution, **gpu);
  }

  Status merge(const MergeArguments& arguments, const Execution& execution) const override {
    const Result<const runtime::CudaDevice*> gpu = runtime::cuda_device(arguments.o.device.index);
    return gpu.ok() ? gpu::merge(arguments, execution, **gpu) : gpu.status();
  }

  Status append(const AppendArguments& arguments, const Execution& execution) const override {
    const Result<const runtime::CudaDevice*> gpu = runtime::cuda_device(arguments.k_cache.device.index);
    return gpu.ok() ? gpu::append(arguments, execution, **gpu) : gpu.status();
  }

  Status encode_rows(const ConstTensorView& rows, const TensorView& cache, const RowFormat& format,
                     const Execution& execution) const override {
    const Result<const runtime::CudaDevice*> gpu = runtime::cuda_device(cache.device.index);
    return gpu.ok() ? gpu::encode_rows(rows, cache, format, execution, **gpu) : gpu.status();
  }

  Status decode_rows(const ConstTensorView& cache, const TensorView& rows, const RowFormat& format,
                     const Execution& execution) const override {
    const Result<const runtime::CudaDevice*> gpu = runtime::cuda_device(cache.device.index);
    return gpu.ok() ? gpu::decode_rows(cache, rows, format, execution, **gpu) : gpu.status();
  }

  Status append_rows(const AppendRowsArguments& arguments, const RowFormat& format,
                     const Execution& execution) const override {
    const Result<const runtime::CudaDevice*> gpu = runtime::cuda_device(arguments.cache.device.index);
    return gpu.ok() ? gpu::append_rows(arguments, format, execution, **gpu) : gpu.status();
  }

  Status sparse_forward(const SparseForwardArguments& arguments, const SparseOptions& options,
                        const Execution& execution) const override {
    const Result<const runtime::CudaDevice*> gpu = runtime::cuda_device(arguments.q.device.index);
    return gpu.ok() ? gpu::sparse_forward(arguments, options, execution, **gpu) : gpu.status();
  }

  Result<std::string> explain_sparse_forward(const SparseForwardArguments& arguments, const SparseOptions& options,
                                             const Execution& execution) const override {
    const Result<const runtime::CudaDevice*> gpu = runtime::cuda_device(arguments.q.device.index);
    if (!gpu.ok()) return gpu.status();
    return gpu::explain_sparse_forward(arguments, options, execution, **gpu);
  }

  Status sparse_backward(const SparseBackwardArguments& arguments, const SparseOptions& options,
                         const Execution& execution) const override {
    const Result<const runtime::CudaDevice*> gpu = runtime::cuda_device(arguments.forward.q.device.index);
    return gpu.ok() ? gpu::sparse_backward(arguments, options, execution, **gpu) : gpu.status();
  }

  Status read_back(const Device& device, void* to, const void* from, std::size_t bytes,
                   const Execution& execution) const override {
    const Result<const runtime::CudaDevice*> gpu = runtime::cuda_device(device.index);
    return gpu.ok() ? gpu::read_back(**gpu, to, from, bytes, execution) : gpu.status();
  }
};

}  // namespace

const engine::Implementation& engine() {
  static const GpuEngine engine;
  return engine;
}

}  // namespace strobe::gpu
