// SPDX-License-Identifier: Apache-2.0
// The C++ API without memory: forward, backward and plans.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "every_allocation.h"
#include "small_case.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

Status run(const ForwardArguments& arguments, const AttentionOptions& options, const Execution& execution) {
  return forward(arguments, options, execution);
}

Status run(const BackwardArguments& arguments, const AttentionOptions& options, const Execution& execution) {
  return backward(arguments, options, execution);
}

/// Everything that a failing call may say: there is no memory at all, or none for so large a workspace.
void expect_known(const std::vector<std::string>& messages, std::size_t workspace_bytes) {
  const std::string workspace = "a workspace of " + std::to_string(workspace_bytes) + " bytes could not be allocated";
  for (const std::string& message : messages) {
    EXPECT_TRUE(message == kRanOut || message == workspace) << message;
  }
}

class CppApi : public testing::TestWithParam<Failure> {
 protected:
  template <class Arguments>
  void attack(const std::function<Arguments(const CaseTensors&)>& arguments_of) {
    for (const auto& [name, chosen] : executions()) {
      const Execution& execution = chosen;  // clang 14 has no captures of bindings
      SCOPED_TRACE(name);
      CaseTensors expected(attention_);
      warm_up(expected, execution);
      CaseTensors tensors(attention_);
      if constexpr (std::is_same_v<Arguments, BackwardArguments>) {
        ASSERT_TRUE(forward(tensors.forward_arguments(), attention_.options, execution).ok());
      }
      const Arguments arguments = arguments_of(tensors);
      const auto untouched = [&] { return outputs_untouched<Arguments>(tensors); };
      const Result<Plan> plan = make_plan(arguments, attention_.options, execution);
      ASSERT_TRUE(plan.ok()) << plan.status().message();

      const auto direct = [&] { return run(arguments, attention_.options, execution); };
      expect_known(fail_every_allocation(GetParam(), direct, untouched), plan->workspace_size());
      expect_same_results<Arguments>(tensors, expected);
      poison_outputs<Arguments>(tensors);
      const auto planning = [&] { return make_plan(arguments, attention_.options, execution).status(); };
      expect_known(fail_every_allocation(GetParam(), planning, untouched), plan->workspace_size());
      const auto planned = [&] { return plan->run(arguments, execution); };
      expect_known(fail_every_allocation(GetParam(), planned, untouched), plan->workspace_size());
      expect_same_results<Arguments>(tensors, expected);
    }
  }

  /// Runs both passes: what the library and oneTBB allocate once and keep is there before anything is counted.
  void warm_up(CaseTensors& tensors, const Execution& execution) {
    ASSERT_TRUE(forward(tensors.forward_arguments(), attention_.options, execution).ok());
    ASSERT_TRUE(backward(tensors.backward_arguments(), attention_.options, execution).ok());
  }

  const AttentionCase attention_ = small_case();
};

INSTANTIATE_TEST_SUITE_P(Failures, CppApi, testing::Values(Failure::once, Failure::from_then),
                         [](const auto& failure) { return failure.param == Failure::once ? "Once" : "FromThen"; });

TEST_P(CppApi, Forward) {
  attack<ForwardArguments>([](const CaseTensors& tensors) { return tensors.forward_arguments(); });
}

TEST_P(CppApi, Backward) {
  attack<BackwardArguments>([](const CaseTensors& tensors) { return tensors.backward_arguments(); });
}

TEST_P(CppApi, APlanWithTheCallersAllocatorAllocatesNothing) {
  const AllocateWorkspace in_place = [](std::size_t bytes) -> void* {
    alignas(64) static std::array<std::byte, 1 << 20> memory;
    return bytes <= memory.size() ? memory.data() : nullptr;
  };
  const Execution execution = {.threads = 1, .allocate_workspace = &in_place};
  CaseTensors tensors(attention_);
  warm_up(tensors, execution);
  const Result<Plan> plan = make_plan(tensors.backward_arguments(), attention_.options, execution);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const Attempt result = attempt(0, GetParam(), [&] { return plan->run(tensors.backward_arguments(), execution); });
  EXPECT_FALSE(result.failed);
  EXPECT_EQ(result.code, StatusCode::ok) << result.message.data();
}

}  // namespace
}  // namespace strobe::test
