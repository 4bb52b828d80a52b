// SPDX-License-Identifier: Apache-2.0
#include "ampere/engine.h"

#include <fmt/format.h>

#include "ampere/forward.h"
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
};

}  // namespace

const engine::Implementation& engine() {
  static const AmpereEngine engine;
  return engine;
}

}  // namespace strobe::ampere
