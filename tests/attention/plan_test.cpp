// SPDX-License-Identifier: Apache-2.0
// Plans: made from shapes alone, run many times on other data, with the caller's workspace.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "matches_reference.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

constexpr std::byte kPoison{0xFF};

AttentionCase some_case() {
  AttentionCase attention{
      .heads_q = 4, .heads_kv = 2, .head_dim = 40, .head_dim_v = 24, .q = {.rows = 130}, .k = {.rows = 200}};
  attention.options.causal = CausalMask::bottom_right;
  return attention;
}

// Workspace of exactly `bytes`, NaN all over, with a guard behind it.
class GuardedWorkspace {
 public:
  explicit GuardedWorkspace(std::size_t bytes) : bytes_(bytes), memory_(bytes + 2 * kGuard, kPoison) {
    void* start = memory_.data();
    std::size_t space = memory_.size();
    start_ = static_cast<std::byte*>(std::align(64, bytes + kGuard, start, space));
  }

  Execution execution() { return {.threads = 2, .workspace = start_, .workspace_bytes = bytes_}; }

  bool guard_intact() const {
    return std::all_of(start_ + bytes_, start_ + bytes_ + kGuard, [](std::byte byte) { return byte == kPoison; });
  }

 private:
  static constexpr std::size_t kGuard = 128;
  std::size_t bytes_;
  std::vector<std::byte> memory_;
  std::byte* start_;
};

TEST(Plan, IsMadeWithoutData) {
  CaseTensors tensors(some_case());
  ForwardArguments arguments = tensors.forward_arguments();
  arguments.q.data = arguments.k.data = arguments.v.data = nullptr;
  arguments.o.data = arguments.lse.data = nullptr;
  const Result<Plan> plan = make_plan(arguments, some_case().options);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->engine(), Engine::cpu);
  EXPECT_TRUE(plan->run(tensors.forward_arguments()).ok());
}

TEST(Plan, RunsOnOtherDataWithTheCallersWorkspace) {
  const AttentionCase attention = some_case();
  CaseTensors planned(attention);
  const Result<Plan> forward_plan = make_plan(planned.forward_arguments(), attention.options, {.threads = 2});
  const Result<Plan> backward_plan = make_plan(planned.backward_arguments(), attention.options, {.threads = 2});
  ASSERT_TRUE(forward_plan.ok() && backward_plan.ok());
  GuardedWorkspace forward_workspace(forward_plan->workspace_size());
  GuardedWorkspace backward_workspace(backward_plan->workspace_size());
  for (const std::uint64_t seed : {1, 2, 3}) {
    AttentionCase other = attention;
    other.seed = seed;
    CaseTensors tensors(other);
    ASSERT_TRUE(forward_plan->run(tensors.forward_arguments(), forward_workspace.execution()).ok());
    ASSERT_TRUE(backward_plan->run(tensors.backward_arguments(), backward_workspace.execution()).ok());
    const reference::ForwardResult expected = reference::forward(tensors.forward_arguments(), attention.options);
    expect_within_bound(tensors.o, expected.o, "o");
    expect_within_bound(tensors.lse, expected.lse, "lse");
    const reference::BackwardResult gradients = reference::backward(tensors.backward_arguments(), attention.options);
    expect_within_bound(tensors.dq, gradients.dq, "dq");
    expect_within_bound(tensors.dk, gradients.dk, "dk");
    expect_within_bound(tensors.dv, gradients.dv, "dv");
  }
  EXPECT_TRUE(forward_workspace.guard_intact());
  EXPECT_TRUE(backward_workspace.guard_intact());
}

TEST(Plan, RowsWithoutKeysReadNothingOfTheWorkspace) {
  AttentionCase attention{.heads_q = 2, .head_dim = 40, .q = {.rows = 210}, .k = {.rows = 30}};
  attention.options.causal = CausalMask::bottom_right;
  CaseTensors tensors(attention);
  const Result<Plan> plan = make_plan(tensors.forward_arguments(), attention.options, {.threads = 2});
  ASSERT_TRUE(plan.ok());
  GuardedWorkspace workspace(plan->workspace_size());
  ASSERT_TRUE(plan->run(tensors.forward_arguments(), workspace.execution()).ok());
  expect_within_bound(tensors.o, reference::forward(tensors.forward_arguments(), attention.options).o, "o");
}

// Counts its calls; memory of the size that the last one asked for.
class Allocator {
 public:
  void* operator()(std::size_t bytes) {
    ++calls;
    last_bytes = bytes;
    memory_ = std::make_unique<GuardedWorkspace>(bytes);
    return memory_->execution().workspace;
  }

  bool guard_intact() const { return memory_->guard_intact(); }

  int calls = 0;
  std::size_t last_bytes = 0;

 private:
  std::unique_ptr<GuardedWorkspace> memory_;
};

TEST(Plan, AsksTheCallersAllocatorForAWorkspace) {
  const AttentionCase attention = some_case();
  CaseTensors expected(attention);
  CaseTensors tensors(attention);
  ASSERT_TRUE(forward(expected.forward_arguments(), attention.options).ok());
  ASSERT_TRUE(backward(expected.backward_arguments(), attention.options).ok());
  Allocator allocator;
  const AllocateWorkspace allocate = std::ref(allocator);
  const Execution execution = {.threads = 2, .allocate_workspace = &allocate};
  const Result<Plan> plan = make_plan(tensors.backward_arguments(), attention.options, execution);
  ASSERT_TRUE(plan.ok());
  ASSERT_GT(plan->workspace_size(), 0U);
  EXPECT_EQ(allocator.calls, 0);
  ASSERT_TRUE(forward(tensors.forward_arguments(), attention.options, execution).ok());
  EXPECT_EQ(allocator.calls, 1);
  EXPECT_TRUE(allocator.guard_intact());
  for (const bool planned : {false, true}) {
    const Status status = planned ? plan->run(tensors.backward_arguments(), execution)
                                  : backward(tensors.backward_arguments(), attention.options, execution);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(allocator.calls, planned ? 3 : 2);
    EXPECT_EQ(allocator.last_bytes, plan->workspace_size());
    EXPECT_TRUE(allocator.guard_intact());
    EXPECT_TRUE(tensors.dq.element_bytes() == expected.dq.element_bytes());
  }
  GuardedWorkspace workspace(plan->workspace_size());
  Execution with_both = workspace.execution();
  with_both.allocate_workspace = &allocate;
  ASSERT_TRUE(plan->run(tensors.backward_arguments(), with_both).ok());
  EXPECT_EQ(allocator.calls, 3);
}

TEST(Plan, PassesOnThatTheCallersAllocatorFailed) {
  const AttentionCase attention = some_case();
  CaseTensors tensors(attention);
  const AllocateWorkspace has_none = [](std::size_t) -> void* { return nullptr; };
  const Status status = forward(tensors.forward_arguments(), attention.options, {.allocate_workspace = &has_none});
  EXPECT_EQ(status.code(), StatusCode::out_of_memory);
  EXPECT_TRUE(status.message().starts_with("allocate_workspace gave null for ")) << status.message();
  EXPECT_TRUE(tensors.o.untouched());
  const AllocateWorkspace throws = [](std::size_t) -> void* { throw std::runtime_error("no more"); };
  EXPECT_THROW(
      static_cast<void>(forward(tensors.forward_arguments(), attention.options, {.allocate_workspace = &throws})),
      std::runtime_error);
  EXPECT_TRUE(tensors.o.untouched());
}

TEST(Plan, RunsOnManyThreadsAtOnce) {
  const AttentionCase attention = some_case();
  CaseTensors planned(attention);
  const Result<Plan> plan = make_plan(planned.forward_arguments(), attention.options, {.threads = 2});
  ASSERT_TRUE(plan.ok());
  ASSERT_TRUE(plan->run(planned.forward_arguments()).ok());
  std::vector<int> same(4, 0);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller, copy = *plan] {
      CaseTensors tensors(attention);
      GuardedWorkspace workspace(copy.workspace_size());
      const Status status = copy.run(tensors.forward_arguments(), workspace.execution());
      same[caller] = status.ok() && tensors.o.element_bytes() == planned.o.element_bytes() ? 1 : 0;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(same, std::vector<int>(4, 1));
}

TEST(Plan, RejectsACallItWasNotMadeFor) {
  const AttentionCase attention = some_case();
  CaseTensors planned(attention);
  const Result<Plan> plan = make_plan(planned.forward_arguments(), attention.options);
  ASSERT_TRUE(plan.ok());
  AttentionCase longer = attention;
  longer.k.rows = 201;
  AttentionCase without_lse = attention;
  without_lse.wants_lse = false;
  AttentionCase narrower = attention;
  narrower.dtype = DType::bfloat16;
  for (const AttentionCase& other : {longer, without_lse, narrower}) {
    CaseTensors tensors(other);
    const Status status = plan->run(tensors.forward_arguments());
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.message(), "the plan was made for another pass, other shapes or dtypes: make a new plan");
    EXPECT_TRUE(tensors.o.untouched());
  }
  CaseTensors tensors(attention);
  EXPECT_EQ(plan->run(tensors.backward_arguments()).code(), StatusCode::invalid_argument);
  EXPECT_TRUE(tensors.dq.untouched());
}

TEST(Plan, WorkspaceGrowsWithSeqlenAndNotItsSquare) {
  const auto workspace = [](std::int64_t seqlen, bool backward) {
    TensorView view = tensor(static_cast<float*>(nullptr), {1, seqlen, 8, 128});
    BackwardArguments arguments;
    arguments.q = arguments.k = arguments.v = arguments.o = arguments.d_o = view;
    arguments.dq = arguments.dk = arguments.dv = view;
    arguments.lse = tensor(static_cast<float*>(nullptr), {1, 8, seqlen});
    ForwardArguments forward_arguments;
    forward_arguments.q = forward_arguments.k = forward_arguments.v = view;
    forward_arguments.o = view;
    const Result<Plan> plan =
        backward ? make_plan(arguments, {}, {.threads = 2}) : make_plan(forward_arguments, {}, {.threads = 2});
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return plan->workspace_size();
  };
  for (const bool backward : {false, true}) {
    EXPECT_LE(workspace(1 << 20, backward), 16 * workspace(1 << 16, backward));
  }
}

TEST(Plan, ExplainsEngineTilesThreadsAndWorkspace) {
  CaseTensors tensors(some_case());
  const Result<Plan> plan = make_plan(tensors.forward_arguments(), some_case().options, {.threads = 3});
  ASSERT_TRUE(plan.ok());
  const std::string text = plan->explain();
  for (const char* part : {"cpu", "tiles", "float32", "threads       3", "workspace"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
}

}  // namespace
}  // namespace strobe::test
