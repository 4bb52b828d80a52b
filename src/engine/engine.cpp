// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <fmt/format.h>

namespace strobe {

const char* name_of(Engine engine) {
  switch (engine) {
    case Engine::automatic: return "automatic";
    case Engine::cpu: return "cpu";
    case Engine::ampere: return "ampere";
    case Engine::hopper: return "hopper";
    case Engine::gpu: return "gpu";
  }
  return "";
}

namespace engine {
namespace {

Status wrong_pass(const char* planned, const char* called) {
  return {StatusCode::invalid_argument, fmt::format("this plan is of a {}: it cannot run a {}", planned, called)};
}

Status lacks(Engine engine, const char* what) {
  return {StatusCode::unsupported, fmt::format("the {} engine has no {}", name_of(engine), what)};
}

}  // namespace

Status PlannedCall::run(const ForwardArguments&, const Execution&) const { return wrong_pass("backward", "forward"); }

Status PlannedCall::run(const BackwardArguments&, const Execution&) const { return wrong_pass("forward", "backward"); }

PlannedCallResult Implementation::plan_forward(const AttentionProblem&, const Execution&) const {
  return lacks(id(), "forward pass");
}

PlannedCallResult Implementation::plan_backward(const AttentionProblem&, const Execution&) const {
  return lacks(id(), "backward pass");
}

Status Implementation::quantize(const QuantizeArguments&, const QuantizeOptions&, const Execution&) const {
  return lacks(id(), "quantiser");
}

Status Implementation::merge(const MergeArguments&, const Execution&) const { return lacks(id(), "merge"); }

Status Implementation::append(const AppendArguments&, const Execution&) const { return lacks(id(), "append"); }

Status Implementation::read_back(const Device&, void*, const void*, std::size_t, const Execution&) const {
  return lacks(id(), "memory of a device");
}

}  // namespace engine
}  // namespace strobe
