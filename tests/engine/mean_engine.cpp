// SPDX-License-Identifier: Apache-2.0
#include "mean_engine.h"

#include "cpu/engine.h"
#include "engine/registry.h"

namespace strobe::test {
namespace {

int plans = 0;

class MeanCall final : public engine::PlannedCall {
 public:
  explicit MeanCall(const AttentionProblem& problem) : problem_(problem) {}

  std::size_t workspace_bytes() const override { return 0; }
  DType probability_dtype() const override { return DType::float32; }
  std::string explain() const override { return "the mean of V"; }

  using PlannedCall::run;
  Status run(const ForwardArguments& arguments, const Execution&) const override {
    for (std::int64_t column = 0; column < problem_.head_dim_v; ++column) {
      float sum = 0.0F;
      const auto* v = static_cast<const float*>(arguments.v.data);
      for (std::int64_t row = 0; row < problem_.seqlen_k; ++row) sum += v[row * problem_.head_dim_v + column];
      auto* o = static_cast<float*>(arguments.o.data);
      for (std::int64_t row = 0; row < problem_.seqlen_q; ++row) {
        o[row * problem_.head_dim_v + column] = sum / static_cast<float>(problem_.seqlen_k);
      }
    }
    return {};
  }

 private:
  AttentionProblem problem_;
};

class MeanEngine final : public engine::Implementation {
 public:
  Engine id() const override { return Engine::gpu; }  // a name that no other engine of the list has
  DeviceType device_type() const override { return DeviceType::cpu; }
  Status serves(const Device& device) const override {
    if (device.index == 0) return {};
    return {StatusCode::unsupported, "the mean engine serves device 0"};
  }

  engine::PlannedCallResult plan_forward(const AttentionProblem& problem, const Execution&) const override {
    if (problem.scale != 0.0F) return Status(StatusCode::unsupported, "the mean engine needs scale 0");
    ++plans;
    return engine::make_planned<MeanCall>(problem);
  }
};

}  // namespace

const engine::Implementation& mean_engine() {
  static const MeanEngine engine;
  return engine;
}

int mean_engine_plans() { return plans; }

}  // namespace strobe::test

namespace strobe::engine {

/// The one line that an engine needs outside its own folder.
std::span<const Implementation* const> implementations() {
  static const Implementation* const engines[] = {&cpu::engine(), &test::mean_engine()};
  return engines;
}

}  // namespace strobe::engine
