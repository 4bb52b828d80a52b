// SPDX-License-Identifier: Apache-2.0
// A case's tensors on a GPU and the plans of its passes, for tests that run them many times.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "attention/case_tensors.h"
#include "device_copies.h"
#include "gpu/stream.h"
#include "strobe/plan.h"
#include "tested_engine.h"

namespace strobe::test {

/// Self-attention of two sequences with two heads, in bfloat16.
inline AttentionCase plain_case(std::int64_t seqlen, std::int64_t head_dim, CausalMask causal) {
  AttentionCase attention;
  attention.dtype = DType::bfloat16;
  attention.batch = 2;
  attention.heads_q = attention.heads_kv = 2;
  attention.head_dim = attention.head_dim_v = head_dim;
  attention.q.rows = attention.k.rows = seqlen;
  attention.options.causal = causal;
  attention.placement.alignment = 8;
  return attention;
}

class DeviceCase {
 public:
  /// The bytes of some outputs, tensor by tensor.
  using Bits = std::vector<std::vector<std::byte>>;

  DeviceCase(const AttentionCase& attention, const runtime::CudaDevice& device) : tensors(attention), copies(device) {
    const auto place = [this](const GuardedTensor& tensor) { return copies.place(tensor); };
    forward_arguments_ = tensors.forward_arguments(place);
    forward_ = planned(forward_arguments_, attention.options);
    if (!attention.wants_lse || attention.tree) return;
    backward_arguments_ = tensors.backward_arguments(place);
    backward_ = planned(backward_arguments_, attention.options);
  }

  void forward(const gpu::Stream& stream) const { run(forward_, forward_arguments_, {.stream = stream.get()}); }

  /// From what the last forward wrote. Where no workspace is given, it is the plan's own.
  void backward(const gpu::Stream& stream, const gpu::DeviceMemory* workspace = nullptr) const {
    Execution execution{.stream = stream.get()};
    if (workspace != nullptr) {
      execution.workspace = workspace->data();
      execution.workspace_bytes = workspace->bytes();
    }
    run(backward_, backward_arguments_, execution);
  }

  std::size_t backward_workspace_bytes() const { return backward_.has_value() ? backward_->workspace_size() : 0; }

  /// Poisons outputs on the device.
  void poison(const std::vector<GuardedTensor*>& outputs) {
    for (GuardedTensor* const output : outputs) {
      output->poison();
      copies.upload(*output);
    }
  }

  /// What outputs hold.
  Bits bits(const std::vector<GuardedTensor*>& outputs) {
    copies.download(outputs);
    Bits all;
    for (const GuardedTensor* const output : outputs) all.push_back(output->element_bytes());
    return all;
  }

  CaseTensors tensors;
  DeviceCopies copies;

 private:
  template <class Arguments>
  static std::optional<Plan> planned(const Arguments& arguments, const AttentionOptions& options) {
    const Result<Plan> plan = make_plan(arguments, options, tested_execution());
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    if (!plan.ok()) return {};
    return *plan;
  }

  template <class Arguments>
  static void run(const std::optional<Plan>& plan, const Arguments& arguments, const Execution& execution) {
    ASSERT_TRUE(plan.has_value());
    const Status status = plan->run(arguments, execution);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  ForwardArguments forward_arguments_;
  BackwardArguments backward_arguments_;
  std::optional<Plan> forward_, backward_;
};

}  // namespace strobe::test
