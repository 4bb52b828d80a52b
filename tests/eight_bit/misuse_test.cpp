// SPDX-License-Identifier: Apache-2.0
// What is wrong with a call on 8-bit tensors, or not supported, is said.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "io/quantized.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

constexpr auto kInvalid = StatusCode::invalid_argument;
constexpr auto kUnsupported = StatusCode::unsupported;

struct Call {
  Call() {
    Result<io::Quantized> made =
        io::quantized(io::view(std::as_const(q)), io::view(std::as_const(k)), io::view(std::as_const(k)), options);
    operands = *made;
    arguments = operands.arguments();
    arguments.o = io::view(o);
  }

  QuantizeOptions options;
  io::HostTensor q = io::make_tensor(DType::float32, {2, 40, 4, 32});
  io::HostTensor k = io::make_tensor(DType::float32, {2, 50, 2, 32});
  io::HostTensor o = io::make_tensor(DType::bfloat16, {2, 40, 4, 32});
  io::HostTensor other = io::make_tensor(DType::float32, {2, 4, 40, 50});
  io::Quantized operands;
  ForwardArguments arguments;
  AttentionOptions attention;
};

struct Misuse {
  std::string name;
  std::function<void(Call&)> make;
  StatusCode code;
  std::string message;
};

class EightBitMisuse : public testing::TestWithParam<Misuse> {};

TEST_P(EightBitMisuse, IsReported) {
  Call call;
  GetParam().make(call);
  const Status status = forward(call.arguments, call.attention);
  EXPECT_EQ(status.code(), GetParam().code);
  EXPECT_EQ(status.message().substr(0, GetParam().message.size()), GetParam().message);
}

std::vector<Misuse> misuses() {
  return {
      {"NoScales", [](Call& c) { c.arguments.k_descale = {}; }, kInvalid,
       "k_descale is not given: 8-bit inputs need scales"},
      {"WrongScales", [](Call& c) { c.arguments.q_descale.shape[2] = 3; }, kInvalid,
       "q_descale has shape [2, 4, 3]: it must be [2 or 1, 4 or 1, n], with n = 1, 1, 2 or 40"},
      {"ScalesOfAnotherBatch", [](Call& c) { c.arguments.v_descale.shape[0] = 3; }, kInvalid,
       "v_descale has shape [3, 2, 50]"},
      {"ValuesAsRows", [](Call& c) { c.arguments.v.shape = {2, 50, 2, 32}; }, kInvalid,
       "v has shape [2, 50, 2, 32]: it must be [2, 2, 2, 64]"},
      {"ShiftOfAnotherLength", [](Call& c) { c.arguments.q_shift.shape[2] = 39; }, kInvalid,
       "q_shift has shape [2, 4, 39]: it must be [2, 4, 40]"},
      {"EightBitOutput", [](Call& c) { c.arguments.o.dtype = DType::int8; }, kInvalid,
       "o is int8: it must be float32, float16 or bfloat16"},
      {"MixedElements", [](Call& c) { c.arguments.k.dtype = DType::float8_e4m3; }, kInvalid,
       "k is float8_e4m3: it must be int8, as q is"},
      {"ScalesWithoutEightBits", [](Call& c) { c.arguments.q = io::view(std::as_const(c.q)); }, kInvalid,
       "q_descale is given, but q is float32: it belongs to 8-bit inputs"},
      {"RowInvariant", [](Call& c) { c.attention.row_invariant = true; }, kUnsupported,
       "row_invariant is not supported with int8 inputs"},
      {"Dropout", [](Call& c) { c.attention.dropout = 0.5F; }, kUnsupported,
       "dropout is not supported with int8 inputs"},
      {"QueryValues", [](Call& c) { c.arguments.qv = c.arguments.o; }, kUnsupported,
       "qv is not supported with int8 inputs"},
      {"Bias", [](Call& c) { c.arguments.modifiers.bias = io::view(std::as_const(c.other)); }, kUnsupported,
       "bias is not supported with int8 inputs"},
  };
}

std::string misuse_name(const testing::TestParamInfo<Misuse>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Forward, EightBitMisuse, testing::ValuesIn(misuses()), misuse_name);

TEST(EightBitBackward, IsNotSupported) {
  Call call;
  const Status status = backward({.q = call.arguments.q, .k = call.arguments.k, .v = call.arguments.k});
  EXPECT_EQ(status.code(), kUnsupported);
  EXPECT_EQ(status.message(), "q is int8: no engine of this build has a backward of 8-bit inputs");
}

TEST(QuantizeMisuse, IsReported) {
  const io::HostTensor q = io::make_tensor(DType::float32, {1, 4, 1, 8});
  const ConstTensorView view = io::view(q);
  const auto message = [](const ConstTensorView& a, const ConstTensorView& b, const QuantizeOptions& options) {
    return io::quantized(a, b, b, options).status().message();
  };
  EXPECT_EQ(message(view, view, {.element = DType::float16}), "element is float16: it must be int8 or float8_e4m3");
  const io::HostTensor k = io::make_tensor(DType::float32, {1, 4, 1, 16});
  EXPECT_EQ(
      message(view, io::view(k), {}),
      "k has shape [1, 4, 1, 16] and q has [1, 4, 1, 8]: batch and head_dim must be equal, and heads_q a multiple "
      "of heads_kv");
  const io::HostTensor h = io::make_tensor(DType::float16, {1, 4, 1, 8});
  EXPECT_EQ(message(view, io::view(h), {}), "k is float16: it must be float32, as q is");
}

TEST(EightBitPlan, SaysWhatIsRounded) {
  Call call;
  const Result<Plan> plan = make_plan(call.arguments);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->probability_dtype(), DType::uint8);
  EXPECT_NE(plan->explain().find("8-bit inputs  int8"), std::string::npos);
}

}  // namespace
}  // namespace strobe::test
