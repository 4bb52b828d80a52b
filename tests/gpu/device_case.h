// SPDX-License-Identifier: Apache-2.0
// A case's tensors on a GPU and the plans of its passes, for tests that run them many times.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "attention/case_tensors.h"
#include "attention/matches_reference.h"
#include "device_copies.h"
#include "gpu/stream.h"
#include "reference/bound/arithmetic.h"
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

/// Whether a GPU that has the case's forward has its gradients.
inline bool has_gradients(const AttentionCase& attention) {
  constexpr std::int64_t kMostColumns = 512;
  const std::int64_t most_of_terms = tested_family() == Family::sm90 ? 256 : kMostColumns;  // d_bias and d_captures
  const bool of_terms =
      (attention.bias && attention.bias->wants_gradient) ||
      (attention.text && std::ranges::any_of(attention.text->captures, &CapturedTensor::wants_gradient));
  return !attention.has_qv &&
         std::max(attention.head_dim, attention.head_dim_v) <= (of_terms ? most_of_terms : kMostColumns);
}

class DeviceCase {
 public:
  /// The bytes of some outputs, tensor by tensor.
  using Bits = std::vector<std::vector<std::byte>>;

  DeviceCase(const AttentionCase& attention, const runtime::CudaDevice& device)
      : tensors(attention), copies(device), attention_(attention), device_(device) {
    const auto place = [this](const GuardedTensor& tensor) { return copies.place(tensor); };
    forward_arguments_ = tensors.forward_arguments(place);
    forward_ = planned(forward_arguments_, attention.options);
    if (attention.tree || !has_gradients(attention)) return;
    if (!attention.wants_lse && attention.options.normalize == Normalization::softmax) return;
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

  std::string explain_forward() const { return forward_.has_value() ? forward_->explain() : ""; }

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

  /// What the last passes wrote, against the float64 reference.
  void expect_forward_right() {
    copies.download(tensors.forward_outputs());
    expect_forward_matches(tensors, attention_, model());
  }
  void expect_backward_right() {
    copies.download(tensors.backward_outputs());
    expect_backward_matches(tensors, attention_, model());
  }

  /// Runs both passes and compares all that they wrote with the float64 reference.
  void expect_both_right(const gpu::Stream& stream) {
    forward(stream);
    backward(stream);
    if (testing::Test::HasFailure()) return;
    expect_forward_right();
    expect_backward_right();
  }

  /// Runs both passes, then the backward `rounds` times more, each time into poisoned outputs: the bits must be the
  /// same.
  void expect_same_backward(const gpu::Stream& stream, int rounds) {
    const auto outputs = tensors.backward_outputs();
    forward(stream);
    backward(stream);
    const Bits first = bits(outputs);
    for (int round = 0; round < rounds; ++round) {
      poison(outputs);
      backward(stream);
      ASSERT_TRUE(bits(outputs) == first) << describe(attention_) << ", round " << round;
    }
  }

  /// Runs both passes, the backward in a workspace that is NaN before, as 16 and as 32 bits: gradients must be right,
  /// and nothing written behind the workspace.
  void expect_backward_takes_poisoned_workspace(const gpu::Stream& stream) {
    constexpr std::size_t kGuard = 4096;
    constexpr std::byte kPoison{0xff};
    std::vector<std::byte> bytes(backward_workspace_bytes() + kGuard, kPoison);
    Result<gpu::DeviceMemory> workspace = gpu::DeviceMemory::allocate(device_, bytes.size());
    ASSERT_TRUE(workspace.ok()) << workspace.status().message();
    ASSERT_TRUE(workspace->upload(bytes.data()).ok());
    forward(stream);
    backward(stream, &*workspace);
    expect_backward_right();
    ASSERT_TRUE(workspace->download(bytes.data()).ok());
    EXPECT_TRUE(std::all_of(bytes.end() - kGuard, bytes.end(), [](std::byte x) { return x == kPoison; }));
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

  reference::ArithmeticModel model() const { return reference::arithmetic_of(tested_kernels(), attention_.dtype); }

  AttentionCase attention_;
  const runtime::CudaDevice& device_;
  ForwardArguments forward_arguments_;
  BackwardArguments backward_arguments_;
  std::optional<Plan> forward_, backward_;
};

}  // namespace strobe::test
