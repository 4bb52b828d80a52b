// SPDX-License-Identifier: Apache-2.0
// The C ABI without memory: the code, and the message that strobe_last_error gives.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "every_allocation.h"
#include "small_case.h"
#include "strobe/strobe.h"

namespace strobe::test {
namespace {

strobe_tensor as_c(const TensorView& view) {
  strobe_tensor tensor{};
  tensor.data = view.data;
  tensor.dtype = static_cast<std::int32_t>(view.dtype);
  tensor.rank = view.rank;
  std::copy(view.shape.begin(), view.shape.end(), tensor.shape);
  std::copy(view.strides.begin(), view.strides.end(), tensor.strides);
  return tensor;
}

/// Without the options that as_c() would have to be told of one by one.
AttentionCase plain_case() {
  AttentionCase attention{.batch = 2, .heads_q = 4, .heads_kv = 2, .head_dim = 16, .head_dim_v = 16};
  attention.q = {.rows = 40};
  attention.k = {.rows = 50};
  attention.has_d_lse = false;
  return attention;
}

strobe_forward_arguments forward_of(const CaseTensors& tensors) {
  strobe_forward_arguments arguments{};
  arguments.struct_size = sizeof(arguments);
  arguments.q = as_c(tensors.q.view());
  arguments.k = as_c(tensors.k.view());
  arguments.v = as_c(tensors.v.view());
  arguments.o = as_c(tensors.o.view());
  arguments.lse = as_c(tensors.lse.view());
  return arguments;
}

strobe_backward_arguments backward_of(const CaseTensors& tensors) {
  strobe_backward_arguments arguments{};
  arguments.struct_size = sizeof(arguments);
  arguments.q = as_c(tensors.q.view());
  arguments.k = as_c(tensors.k.view());
  arguments.v = as_c(tensors.v.view());
  arguments.o = as_c(tensors.o.view());
  arguments.lse = as_c(tensors.lse.view());
  arguments.d_o = as_c(tensors.d_o.view());
  arguments.dq = as_c(tensors.dq.view());
  arguments.dk = as_c(tensors.dk.view());
  arguments.dv = as_c(tensors.dv.view());
  return arguments;
}

/// A call's code and message as the C++ API gives them. The message is cut where it would need memory.
Status said(strobe_code code) {
  EXPECT_EQ(code == STROBE_OK, std::string_view(strobe_last_error()).empty());
  return {static_cast<StatusCode>(code), std::string(std::string_view(strobe_last_error()).substr(0, 15))};
}

class CAbi : public testing::TestWithParam<Failure> {
 protected:
  CAbi() {
    const strobe_forward_arguments forward = forward_of(tensors_);
    const strobe_backward_arguments backward = backward_of(tensors_);
    EXPECT_EQ(strobe_forward(&forward, nullptr, &execution_), STROBE_OK);
    EXPECT_EQ(strobe_backward(&backward, nullptr, &execution_), STROBE_OK);
    EXPECT_EQ(strobe_forward(nullptr, nullptr, nullptr), STROBE_INVALID_ARGUMENT);  // the thread keeps its message
  }

  template <class Arguments, class Call>
  void attack(const Call& call) {
    poison_outputs<Arguments>(tensors_);
    const auto untouched = [&] { return outputs_untouched<Arguments>(tensors_); };
    const auto messages = fail_every_allocation(GetParam(), [&] { return said(call()); }, untouched);
    for (const std::string& message : messages) {
      EXPECT_TRUE(message == kRanOut || message == "a workspace of ") << message;
    }
  }

  const strobe_execution execution_{.struct_size = sizeof(strobe_execution), .threads = 1};
  CaseTensors tensors_{plain_case()};
};

INSTANTIATE_TEST_SUITE_P(Failures, CAbi, testing::Values(Failure::once, Failure::from_then),
                         [](const auto& failure) { return failure.param == Failure::once ? "Once" : "FromThen"; });

TEST_P(CAbi, Forward) {
  const strobe_forward_arguments arguments = forward_of(tensors_);
  attack<ForwardArguments>([&] { return strobe_forward(&arguments, nullptr, &execution_); });
}

TEST_P(CAbi, Backward) {
  const strobe_backward_arguments arguments = backward_of(tensors_);
  attack<BackwardArguments>([&] { return strobe_backward(&arguments, nullptr, &execution_); });
}

TEST_P(CAbi, PlanAndRun) {
  const strobe_forward_arguments arguments = forward_of(tensors_);
  strobe_plan* plan = nullptr;
  attack<ForwardArguments>([&] {
    strobe_plan* made = nullptr;
    const strobe_code code = strobe_plan_forward(&arguments, nullptr, &execution_, &made);
    EXPECT_EQ(made != nullptr, code == STROBE_OK);
    strobe_plan_destroy(made);
    return code;
  });
  ASSERT_EQ(strobe_plan_forward(&arguments, nullptr, &execution_, &plan), STROBE_OK);
  attack<ForwardArguments>([&] { return strobe_plan_run_forward(plan, &arguments, &execution_); });
  strobe_plan_destroy(plan);
}

/// A message about a wrong call needs memory, too.
TEST_P(CAbi, ErrorMessages) {
  strobe_forward_arguments arguments = forward_of(tensors_);
  arguments.k.dtype = STROBE_INT32;
  ASSERT_EQ(strobe_forward(&arguments, nullptr, &execution_), STROBE_INVALID_ARGUMENT);
  for (std::int64_t number = 0;; ++number) {
    const std::int64_t live = live_allocations();
    const Attempt result =
        attempt(number, GetParam(), [&] { return said(strobe_forward(&arguments, nullptr, &execution_)); });
    EXPECT_FALSE(result.threw);
    EXPECT_EQ(live_allocations(), live);
    if (!result.failed) break;
    EXPECT_EQ(result.code, StatusCode::out_of_memory) << number;
    EXPECT_STREQ(result.message.data(), kRanOut) << number;
  }
  EXPECT_STREQ(strobe_last_error(), "k is int32: it must be float32, as q is");
}

}  // namespace
}  // namespace strobe::test
