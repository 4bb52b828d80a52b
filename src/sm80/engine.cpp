// SPDX-License-Identifier: Apache-2.0
#include "sm80/engine.h"

#include <fmt/format.h>

#include "gpu/engine.h"
#include "gpu/params/score.h"
#include "sm80/backward.h"
#include "sm80/forward.h"

namespace strobe::sm80 {
namespace {

class AmpereEngine final : public gpu::GpuEngine {
 public:
  Engine id() const override { return Engine::ampere; }

  engine::PlannedCallResult plan_forward(const AttentionProblem& problem, const Execution&) const override {
    return sm80::plan_forward(gpu::without_idle_softcap(problem));
  }

  engine::PlannedCallResult plan_backward(const AttentionProblem& problem, const Execution&) const override {
    return sm80::plan_backward(gpu::without_idle_softcap(problem));
  }

 private:
  Status serves_gpu(const runtime::CudaDevice& device) const override {
    if (device.compute_major >= 8) return {};
    return {StatusCode::unsupported,
            fmt::format("{} has compute capability {}.{}: the GPU engines are for 8.0 and later", device.name,
                        device.compute_major, device.compute_minor)};
  }

  std::string architecture(const runtime::CudaDevice& device) const override {
    return fmt::format("sm_{}0", device.compute_major);
  }
};

}  // namespace

const engine::Implementation& engine() {
  static const AmpereEngine engine;
  return engine;
}

}  // namespace strobe::sm80
