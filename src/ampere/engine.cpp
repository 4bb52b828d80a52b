// SPDX-License-Identifier: Apache-2.0
#include "ampere/engine.h"

#include <fmt/format.h>

#include "ampere/backward.h"
#include "ampere/forward.h"
#include "gpu/append.h"
#include "gpu/merge.h"
#include "gpu/read_back.h"
#include "runtime/device.h"

namespace strobe::ampere {
namespace {

class AmpereEngine final : public engine::Implementation {
 public:
  Engine id() const override { return Engine::ampere; }
  DeviceType device_type() const override { return DeviceType::cuda; }

  Status serves(const Device& device) const override {
    const Result<const runtime::CudaDevice*> cuda = runtime::cuda_device(device.index);
    if (!cuda.ok()) return cuda.status();
    if ((*cuda)->compute_major >= 8) return {};
    return {StatusCode::unsupported,
            fmt::format("{} has compute capability {}.{}: the GPU engines are for 8.0 and later", (*cuda)->name,
                        (*cuda)->compute_major, (*cuda)->compute_minor)};
  }

  engine::PlannedCallResult plan_forward(const AttentionProblem& problem, const Execution&) const override {
    return ampere::plan_forward(problem);
  }

  engine::PlannedCallResult plan_backward(const AttentionProblem& problem, const Execution&) const override {
    return ampere::plan_backward(problem);
  }

  Status merge(const MergeArguments& arguments, const Execution& execution) const override {
    const Result<const runtime::CudaDevice*> device = runtime::cuda_device(arguments.o.device.index);
    if (!device.ok()) return device.status();
    return gpu::merge(arguments, execution, **device, fmt::format("sm_{}0", (*device)->compute_major));
  }

  Status append(const AppendArguments& arguments, const Execution& execution) const override {
    const Result<const runtime::CudaDevice*> device = runtime::cuda_device(arguments.k_cache.device.index);
    if (!device.ok()) return device.status();
    return gpu::append(arguments, execution, **device, fmt::format("sm_{}0", (*device)->compute_major));
  }

  Status read_back(const Device& on, void* to, const void* from, std::size_t bytes,
                   const Execution& execution) const override {
    const Result<const runtime::CudaDevice*> device = runtime::cuda_device(on.index);
    return device.ok() ? gpu::read_back(**device, to, from, bytes, execution) : device.status();
  }
};

}  // namespace

const engine::Implementation& engine() {
  static const AmpereEngine engine;
  return engine;
}

}  // namespace strobe::ampere
