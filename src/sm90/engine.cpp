// SPDX-License-Identifier: Apache-2.0
#include "sm90/engine.h"

#include <fmt/format.h>

#include "gpu/auxiliary/quantize.h"
#include "gpu/engine.h"
#include "gpu/params/score.h"
#include "sm90/backward.h"
#include "sm90/forward.h"

namespace strobe::sm90 {
namespace {

class HopperEngine final : public gpu::GpuEngine {
 public:
  Engine id() const override { return Engine::hopper; }

  engine::PlannedCallResult plan_forward(const AttentionProblem& problem, const Execution&) const override {
    return sm90::plan_forward(gpu::without_idle_softcap(problem));
  }

  engine::PlannedCallResult plan_backward(const AttentionProblem& problem, const Execution&) const override {
    return sm90::plan_backward(gpu::without_idle_softcap(problem));
  }

  Status quantize(const QuantizeArguments& arguments, const QuantizeOptions& options,
                  const Execution& execution) const override {
    const Result<const runtime::CudaDevice*> device = runtime::cuda_device(arguments.q.device.index);
    if (!device.ok()) return device.status();
    return gpu::quantize(arguments, options, execution, **device, kEngine, "sm_90a");
  }

 private:
  Status serves_gpu(const runtime::CudaDevice& device) const override {
    if (device.compute_major == 9 && device.compute_minor == 0) return {};
    return {StatusCode::unsupported, fmt::format("{} has compute capability {}.{}: the hopper engine is for 9.0",
                                                 device.name, device.compute_major, device.compute_minor)};
  }

  std::string architecture(const runtime::CudaDevice&) const override { return "sm_90a"; }
};

}  // namespace

const engine::Implementation& engine() {
  static const HopperEngine engine;
  return engine;
}

}  // namespace strobe::sm90
