// SPDX-License-Identifier: Apache-2.0
// An engine reaches the API by being listed; what it lacks is an error.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "api/choose_engine.h"
#include "engine/registry.h"
#include "mean_engine.h"
#include "strobe/jvp.h"
#include "strobe/plan.h"
#include "strobe/sparse.h"

namespace strobe::test {
namespace {

constexpr std::int64_t kRows = 3;
constexpr std::int64_t kColumns = 2;
constexpr float kUntouched = -7.0F;

/// One head of three rows, and gradients for it.
struct SmallCall {
  std::vector<float> q = {1, 2, 3, 4, 5, 6}, k = {6, 5, 4, 3, 2, 1}, v = {1, 10, 2, 20, 6, 60};
  std::vector<float> o = std::vector<float>(kRows * kColumns, kUntouched);
  std::vector<float> lse = std::vector<float>(kRows, 0.0F);
  std::vector<float> dq = o, dk = o, dv = o;

  static auto view(auto& data) { return tensor(data.data(), {1, kRows, 1, kColumns}); }
  ForwardArguments forward() { return {.q = view(q), .k = view(k), .v = view(v), .o = view(o)}; }
  BackwardArguments backward() {
    BackwardArguments arguments;
    arguments.q = view(q);
    arguments.k = view(k);
    arguments.v = view(v);
    arguments.o = arguments.d_o = view(o);
    arguments.lse = tensor(lse.data(), {1, 1, kRows});
    arguments.dq = view(dq);
    arguments.dk = view(dk);
    arguments.dv = view(dv);
    return arguments;
  }
};

constexpr Execution kOnMean{.engine = Engine::gpu};

TEST(Engine, ThatIsListedRunsCalls) {
  SmallCall call;
  ASSERT_TRUE(forward(call.forward(), {.scale = 0.0F}, kOnMean).ok());
  for (std::size_t i = 0; i < call.o.size(); i += 2) {
    EXPECT_FLOAT_EQ(call.o[i], 3.0F);
    EXPECT_FLOAT_EQ(call.o[i + 1], 30.0F);
  }
}

TEST(Engine, IsNamedAndExplainedByItsPlan) {
  SmallCall call;
  const Result<Plan> plan = make_plan(call.forward(), {.scale = 0.0F}, kOnMean);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->engine(), Engine::gpu);
  EXPECT_EQ(plan->explain(), "the mean of V");
  EXPECT_EQ(plan->workspace_size(), 0U);
}

TEST(Engine, WithoutAPassReturnsAnError) {
  SmallCall call;
  const Status status = backward(call.backward(), {.scale = 0.0F}, kOnMean);
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_EQ(status.message(), "the gpu engine has no backward pass");
  EXPECT_EQ(call.dq, std::vector<float>(kRows * kColumns, kUntouched));
}

TEST(Engine, WithoutAJvpSaysWhichHasIt) {
  SmallCall call;
  const ForwardArguments forward = call.forward();
  const Status status =
      jvp({.q = forward.q, .k = forward.k, .v = forward.v, .q_tangent = forward.q, .o_tangent = forward.o},
          {.scale = 0.0F}, kOnMean);
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_EQ(status.message(), "the gpu engine has no JVP (forward-mode derivative): the cpu engine alone has it");
}

TEST(Engine, WithoutSparseAttentionSaysWhichHasIt) {
  SmallCall call;
  std::vector<std::int32_t> indices(kRows, 0);
  SparseForwardArguments arguments;
  arguments.q = SmallCall::view(call.q);
  arguments.o = SmallCall::view(call.o);
  arguments.sources[0].k = SmallCall::view(call.k);
  arguments.sources[0].v = SmallCall::view(call.v);
  arguments.sources[0].indices = tensor(indices.data(), {1, kRows, 1, 1});
  Status status = sparse_forward(arguments, {}, kOnMean);
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_EQ(status.message(), "the gpu engine has no sparse attention");
  std::vector<float> lse(kRows);
  arguments.lse = tensor(lse.data(), {1, 1, kRows});
  SparseBackwardArguments gradients{
      .forward = arguments, .d_o = SmallCall::view(call.o), .dq = SmallCall::view(call.dq)};
  gradients.gradients[0] = {SmallCall::view(call.dk), SmallCall::view(call.dv)};
  status = sparse_backward(gradients, {}, kOnMean);
  EXPECT_EQ(status.message(), "the gpu engine has no backward of sparse attention");
  std::vector<std::uint8_t> cache(kRows * 8, 1);
  const TensorView rows = tensor(cache.data(), {1, kRows, 1, 8});
  const RowFormat format = eight_bit_rows(RowElement::int8, kColumns);
  status = encode_rows(SmallCall::view(call.k), rows, format, kOnMean);
  EXPECT_EQ(status.message(), "the gpu engine has no encoder of rows");
  std::vector<std::int32_t> lengths(1, 0);
  AppendRowsArguments append{
      .cache = rows, .rows = SmallCall::view(call.k), .cache_seqlens = tensor(lengths.data(), {1})};
  status = append_rows(append, format, kOnMean);
  EXPECT_EQ(status.message(), "the gpu engine has no append of rows in a format");
  status = decode_rows(rows, SmallCall::view(call.o), format, kOnMean);
  EXPECT_EQ(status.message(), "the gpu engine has no decoder of rows");
  EXPECT_EQ(call.o, std::vector<float>(kRows * kColumns, kUntouched));
}

TEST(Engine, PlannedForOnePassDoesNotRunTheOther) {
  SmallCall call;
  AttentionProblem problem;
  problem.scale = 0.0F;
  const auto planned = mean_engine().plan_forward(problem, kOnMean);
  ASSERT_TRUE(planned.ok());
  const Status status = (*planned)->run(call.backward(), kOnMean);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message(), "this plan is of another pass: it cannot run a backward");
}

TEST(Engine, SaysWhyItDoesNotPlan) {
  SmallCall call;
  EXPECT_EQ(forward(call.forward(), {}, kOnMean).message(), "the mean engine needs scale 0");
}

TEST(ChooseEngine, TakesTheFirstThatServesTheDevice) {
  const auto chosen = api::choose_engine(engine::implementations(), Device{}, Engine::automatic);
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ((*chosen)->id(), Engine::cpu);
}

TEST(ChooseEngine, SaysWhatIsAcceptedWhereNoneIsOfThatName) {
  const engine::Implementation* const cpu[] = {engine::implementations().front()};
  EXPECT_EQ(api::choose_engine(cpu, Device{}, Engine::gpu).status().message(),
            "the gpu engine is not in this build: engine must be automatic or cpu");
}

TEST(ChooseEngine, TakesTheGpuEngineByTheNamesOfBefore) {
  for (const Engine before : {Engine::ampere, Engine::hopper}) {
    const auto chosen = api::choose_engine(engine::implementations(), Device{}, before);
    ASSERT_TRUE(chosen.ok());
    EXPECT_EQ((*chosen)->id(), Engine::gpu);
  }
}

TEST(ChooseEngine, SaysWhichDevicesTheWantedEngineTakes) {
  const Device gpu{.type = DeviceType::cuda, .index = 1};
  EXPECT_EQ(api::choose_engine(engine::implementations(), gpu, Engine::cpu).status().message(),
            "q is on cuda:1: the cpu engine takes tensors on the cpu");
  EXPECT_EQ(api::choose_engine(engine::implementations(), gpu, Engine::automatic).status().message(),
            "no engine of this build takes tensors on a CUDA device");
}

TEST(ChooseEngine, PassesOnWhyAnEngineDoesNotServeTheDevice) {
  const Device other{.type = DeviceType::cpu, .index = 1};
  EXPECT_EQ(api::choose_engine(engine::implementations(), other, Engine::gpu).status().message(),
            "the mean engine serves device 0");
}

}  // namespace
}  // namespace strobe::test
