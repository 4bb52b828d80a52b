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

Status wrong_pass(const char* called) {
  return {StatusCode::invalid_argument, fmt::format("this plan is of another pass: it cannot run a {}", called)};
}

Status lacks(Engine engine, const char* what) {
  return {StatusCode::unsupported, fmt::format("the {} engine has no {}", name_of(engine), what)};
}

}  // namespace

Status PlannedCall::run(const ForwardArguments&, const Execution&) const { return wrong_pass("forward"); }

Status PlannedCall::run(const BackwardArguments&, const Execution&) const { return wrong_pass("backward"); }

Status PlannedCall::run(const JvpArguments&, const Execution&) const { return wrong_pass("JVP"); }

PlannedCallResult Implementation::plan_forward(const AttentionProblem&, const Execution&) const {
  return lacks(id(), "forward pass");
}

PlannedCallResult Implementation::plan_backward(const AttentionProblem&, const Execution&) const {
  return lacks(id(), "backward pass");
}

PlannedCallResult Implementation::plan_jvp(const AttentionProblem&, const Execution&) const {
  return lacks(id(), "JVP (forward-mode derivative): the cpu engine alone has it");
}

Status Implementation::quantize(const QuantizeArguments&, const QuantizeOptions&, const Execution&) const {
  return lacks(id(), "quantiser");
}

Status Implementation::merge(const MergeArguments&, const Execution&) const { return lacks(id(), "merge"); }

Status Implementation::merge_backward(const MergeBackwardArguments&, const Execution&) const {
  return lacks(id(), "gradient of a merge: the cpu engine alone has it");
}

Status Implementation::append(const AppendArguments&, const Execution&) const { return lacks(id(), "append"); }

Status Implementation::encode_rows(const ConstTensorView&, const TensorView&, const RowFormat&,
                                   const Execution&) const {
  return lacks(id(), "encoder of rows");
}

Status Implementation::decode_rows(const ConstTensorView&, const TensorView&, const RowFormat&,
                                   const Execution&) const {
  return lacks(id(), "decoder of rows");
}

Status Implementation::append_rows(const AppendRowsArguments&, const RowFormat&, const Execution&) const {
  return lacks(id(), "append of rows in a format");
}

Status Implementation::sparse_forward(const SparseForwardArguments&, const SparseOptions&, const Execution&) const {
  return lacks(id(), "sparse attention");
}

Result<std::string> Implementation::explain_sparse_forward(const SparseForwardArguments&, const SparseOptions&,
                                                           const Execution&) const {
  return lacks(id(), "sparse attention");
}

Status Implementation::sparse_backward(const SparseBackwardArguments&, const SparseOptions&, const Execution&) const {
  return lacks(id(), "backward of sparse attention");
}

Status Implementation::read_back(const Device&, void*, const void*, std::size_t, const Execution&) const {
  return lacks(id(), "memory of a device");
}

}  // namespace engine
}  // namespace strobe
