// SPDX-License-Identifier: Apache-2.0
// A forward with a cache on a GPU, from a call on tensors in host memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "attention/matches_reference.h"
#include "gpu/device_memory.h"
#include "gpu/stream.h"
#include "reference/bound/arithmetic.h"
#include "reference/bound/reference.h"
#include "strobe/plan.h"
#include "tested_engine.h"

namespace strobe::test {

/// Copies of all that a call reads and writes, gaps included.
class DeviceCache {
 public:
  DeviceCache(const ForwardArguments& host, const runtime::CudaDevice& device)
      : device_(device), host_(host), arguments_(host) {
    for (ConstTensorView* const view : inputs(arguments_)) {
      if (view->given()) *view = on_device(*view);
    }
    for (const ConstTensorView& capture : host.modifiers.captures) captures_.push_back(on_device(capture));
    arguments_.modifiers.captures = captures_;
    for (TensorView* const view : outputs(arguments_)) {
      if (view->given()) view->data = const_cast<void*>(on_device(*view).data);
      if (view->given()) view->device = {DeviceType::cuda, device_.index};
    }
  }

  /// On the device: a test may put another table in its place.
  ForwardArguments& arguments() { return arguments_; }
  ConstTensorView on_device(const ConstTensorView& host) {
    copies_.push_back({host, {}});
    Copy& copy = copies_.back();
    Result<gpu::DeviceMemory> memory = gpu::DeviceMemory::allocate(device_, bytes_of(host));
    EXPECT_TRUE(memory.ok()) << memory.status().message();
    if (memory.ok()) copy.memory = std::move(*memory);
    EXPECT_TRUE(bytes_of(host) == 0 || copy.memory.upload(host.data).ok());
    ConstTensorView view = host;
    view.data = copy.memory.data();
    view.device = {DeviceType::cuda, device_.index};
    return view;
  }

  /// Latent rows: puts K and V of the device into one copy, since their rows overlap on the host.
  void share_rows() {
    const auto* const k = static_cast<const std::byte*>(host_.k.data);
    const auto* const v = static_cast<const std::byte*>(host_.v.data);
    const std::byte* const first = std::min(k, v);
    const auto columns_up_to = [&](const ConstTensorView& view, const std::byte* data) {
      return (data - first) / static_cast<std::int64_t>(size_of(view.dtype)) + view.shape[view.rank - 1];
    };
    ConstTensorView rows = host_.k;
    rows.data = first;
    rows.shape[rows.rank - 1] = std::max(columns_up_to(host_.k, k), columns_up_to(host_.v, v));
    const auto* const copied = static_cast<const std::byte*>(on_device(rows).data);
    arguments_.k.data = copied + (k - first);
    arguments_.v.data = copied + (v - first);
  }

  /// Runs the call on the tested engine; its outputs are then in host memory, too.
  void run(const AttentionOptions& options, const gpu::Stream& stream) {
    plan(options);
    if (plan_) enqueue(stream);
    if (plan_ && !testing::Test::HasFatalFailure()) download_outputs();
  }

  void plan(const AttentionOptions& options) {
    plan_.reset();
    const Result<Plan> plan = make_plan(arguments_, options, tested_execution());
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    plan_ = *plan;
    explained_ = plan_->explain();
    stored_operands_ = reference::has_stored_operands(*plan_);
  }

  /// The call that was planned, on the arguments of now.
  void enqueue(const gpu::Stream& stream) const {
    const Status status = plan_->run(arguments_, {.stream = stream.get()});
    ASSERT_TRUE(status.ok()) << status.message();
  }

  /// Waits for the device.
  void download_outputs() {
    for (const TensorView* const view : outputs(host_)) {
      for (Copy& copy : copies_) {
        if (!view->given() || copy.host.data != view->data) continue;
        const Status downloaded = copy.memory.download(view->data);
        ASSERT_TRUE(downloaded.ok()) << downloaded.message();
      }
    }
  }

  /// NaN in all outputs, of the host and of the device.
  void poison_outputs() {
    for (const TensorView* const view : outputs(host_)) {
      if (!view->given()) continue;
      std::memset(view->data, 0xFF, bytes_of(*view));
      upload(*view);
    }
  }

  /// Copies to the device what a tensor of the host holds now.
  void upload(const ConstTensorView& host) {
    for (Copy& copy : copies_) {
      if (copy.host.data != host.data) continue;
      const Status status = copy.memory.upload(host.data);
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }

  /// What the copy of an input holds now; waits for the device.
  std::vector<std::byte> downloaded(const ConstTensorView& host) const {
    for (const Copy& copy : copies_) {
      if (copy.host.data != host.data) continue;
      std::vector<std::byte> bytes(copy.memory.bytes());
      const Status status = copy.memory.download(bytes.data());
      EXPECT_TRUE(status.ok()) << status.message();
      return bytes;
    }
    ADD_FAILURE() << "there is no copy of this tensor";
    return {};
  }

  /// Of `host`, a call on the CPU that reads the same keys.
  void expect_matches(const ForwardArguments& host, const AttentionOptions& options) const {
    if (compiles_only()) GTEST_SKIP() << "kernels are compiled alone";
    const reference::ArithmeticModel model = reference::arithmetic_of(tested_kernels(), host.q.dtype);
    const reference::ForwardResult expected =
        reference::forward(host, options, stored_operands_ ? reference::with_stored_operands(model) : model, 1);
    expect_within(host_.o, expected.o);
    if (host_.lse.given()) expect_within(host_.lse, expected.lse);
    if (host_.max_logits.given()) expect_within(host_.max_logits, expected.max_logits);
  }

  const std::string& explained() const { return explained_; }

 private:
  struct Copy {
    ConstTensorView host;
    gpu::DeviceMemory memory;
  };

  static std::vector<ConstTensorView*> inputs(ForwardArguments& a) {
    return {&a.q,
            &a.k,
            &a.v,
            &a.qv,
            &a.page_table,
            &a.tree_mask,
            &a.q_descale,
            &a.k_descale,
            &a.v_descale,
            &a.q_shift,
            &a.sequences.cu_seqlens_q,
            &a.sequences.cu_seqlens_k,
            &a.sequences.seqused_q,
            &a.sequences.seqused_k,
            &a.sequences.leftpad_k,
            &a.sequences.cache_batch_idx,
            &a.sequences.offset_q,
            &a.sequences.offset_k,
            &a.modifiers.alibi_slopes,
            &a.modifiers.bias,
            &a.modifiers.sink,
            &a.modifiers.block_mask};
  }
  static std::vector<TensorView*> outputs(ForwardArguments& a) { return {&a.o, &a.lse, &a.max_logits}; }

  static std::size_t bytes_of(const ConstTensorView& view) {
    std::int64_t last = 0;
    for (int axis = 0; axis < view.rank; ++axis) {
      if (view.shape[axis] == 0) return 0;
      last += (view.shape[axis] - 1) * view.strides[axis];
    }
    return static_cast<std::size_t>(last + 1) * size_of(view.dtype);
  }

  static void expect_within(const ConstTensorView& actual, const reference::BoundedTensor& expected) {
    const reference::WorstElement worst = reference::worst_element(actual, expected);
    EXPECT_LE(worst.ratio, 1.0) << reference::describe(worst, actual);
  }

  const runtime::CudaDevice& device_;
  ForwardArguments host_, arguments_;
  std::deque<Copy> copies_;
  std::vector<ConstTensorView> captures_;
  std::optional<Plan> plan_;
  std::string explained_;
  bool stored_operands_ = false;
};

}  // namespace strobe::test
