// SPDX-License-Identifier: Apache-2.0
#include "hopper/engine.h"

#include <fmt/format.h>

#include "gpu/append.h"
#include "gpu/merge.h"
#include "gpu/quantize.h"
#include "gpu/read_back.h"
#include "hopper/backward.h"
#include "hopper/forward.h"
#include "runtime/device.h"

namespace strobe::hopper {
namespace {

class HopperEngine final : public engine::Implementation {
 public:
  Engine id() const override { return Engine::hopper; }
  DeviceType device_type() const override { return DeviceType::cuda; }

  Status serves(const Device& device) const override {
    const Result<const runtime::CudaDevice*> cuda = runtime::cuda_device(device.index);
    if (!cuda.ok()) return cuda.status();
    if ((*cuda)->compute_major == 9 && (*cuda)->compute_minor == 0) return {};
    return {StatusCode::unsupported, fmt::format("{} has compute capability {}.{}: the hopper engine is for 9.0",
                                                 (*cuda)->name, (*cuda)->compute_major, (*cuda)->compute_minor)};
  }

  engine::PlannedCallResult plan_forward(const AttentionProblem& problem, const Execution&) const override {
    return hopper::plan_forward(problem);
  }

  engine::PlannedCallResult plan_backward(const AttentionProblem& problem, const Execution&) const override {
    return hopper::plan_backward(problem);
  }

  Status quantize(const QuantizeArguments& arguments, const QuantizeOptions& options,
                  const Execution& execution) const override {
    const Result<const runtime::CudaDevice*> device = runtime::cuda_device(arguments.q.device.index);
    if (!device.ok()) return device.status();
    return gpu::quantize(arguments, options, execution, **device, kEngine, "sm_90a");
  }

  Status merge(const MergeArguments& arguments, const Execution& execution) const override {
    const Result<const runtime::CudaDevice*> device = runtime::cuda_device(arguments.o.device.index);
    if (!device.ok()) return device.status();
    return gpu::merge(arguments, execution, **device, "sm_90a");
  }

  Status append(const AppendArguments& arguments, const Execution& execution) const override {
    const Result<const runtime::CudaDevice*> device = runtime::cuda_device(arguments.k_cache.device.index);
    if (!device.ok()) return device.status();
    return gpu::append(arguments, execution, **device, "sm_90a");
  }

  Status read_back(const Device& on, void* to, const void* from, std::size_t bytes,
                   const Execution& execution) const override {
    const Result<const runtime::CudaDevice*> device = runtime::cuda_device(on.index);
    return device.ok() ? gpu::read_back(**device, to, from, bytes, execution) : device.status();
  }
};

}  // namespace

const engine::Implementation& engine() {
  static const HopperEngine engine;
  return engine;
}

}  // namespace strobe::hopper
