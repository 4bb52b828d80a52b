// SPDX-License-Identifier: Apache-2.0
// Functions and captures that contradict the contract.
#include <gtest/gtest.h>

#include <vector>

#include "misuse.h"

namespace strobe::test {
namespace {

AttentionCase text_case() {
  AttentionCase attention = valid_case();
  attention.text = {"score + slope[head] * table[k]",
                    "",
                    {{{"slope", DType::float32, 1}, {4}, 0, true}, {{"table", DType::int32, 1}, {5}, 3}}};
  return attention;
}

struct CaptureMisuse {
  const char* name;
  std::function<void(std::vector<ConstTensorView>&)> change;
  const char* message;
};

TEST(TextMisuse, OfCapturesIsAnErrorThatNamesThem) {
  const AttentionCase attention = text_case();
  CaseTensors tensors(attention);
  const CaptureMisuse misuses[] = {
      {"count", [](auto& views) { views.pop_back(); }, "1 captures are given: the function has 2"},
      {"not given", [](auto& views) { views[0] = {}; }, "capture `slope` is not given"},
      {"rank", [](auto& views) { views[0].rank = 2; }, "capture `slope` has shape [4, 0]: the text gives it 1 index"},
      {"dtype", [](auto& views) { views[1].dtype = DType::float32; },
       "capture `table` is float32: it must be int32, as the function was parsed for"},
      {"device", [](auto& views) { views[1].device = {DeviceType::cuda, 0}; }, "capture `table` is on cuda:0"},
  };
  for (const CaptureMisuse& misuse : misuses) {
    ForwardArguments arguments = tensors.forward_arguments();
    std::vector<ConstTensorView> views(arguments.modifiers.captures.begin(), arguments.modifiers.captures.end());
    misuse.change(views);
    arguments.modifiers.captures = views;
    const Status status = forward(arguments, attention.options);
    EXPECT_EQ(status.code(), kInvalid) << misuse.name;
    EXPECT_EQ(status.message().substr(0, std::string(misuse.message).size()), misuse.message) << misuse.name;
    EXPECT_TRUE(tensors.o.untouched()) << misuse.name;
  }
}

TEST(TextMisuse, IntegersBeyond32BitsAreAnErrorThatNamesTheElement) {
  AttentionCase attention = valid_case();
  attention.text = {"", "document[batch][k] == document[batch][q]", {{{"document", DType::int64, 2}, {2, 5}, 3}}};
  CaseTensors tensors(attention);
  ForwardArguments arguments = tensors.forward_arguments();
  const ConstTensorView document = arguments.modifiers.captures[0];
  const auto set = [&](std::int64_t i, std::int64_t j, std::int64_t value) {
    tensors.captures[0].set_bits(i * 5 + j, static_cast<std::uint64_t>(value));
  };
  for (const std::int64_t fitting : {std::int64_t{2147483647}, std::int64_t{-2147483648}}) {
    set(1, 3, fitting);
    EXPECT_TRUE(forward(arguments, attention.options).ok()) << fitting;
  }
  set(1, 3, std::int64_t{1} << 31);
  CaseTensors others(attention);
  arguments.o = others.o.view();
  Status status = forward(arguments, attention.options);
  EXPECT_EQ(status.code(), kInvalid);
  EXPECT_EQ(status.message(), "capture `document`[1][3] is 2147483648: integers of texts have 32 bits");
  EXPECT_TRUE(others.o.untouched());
  set(0, 4, -2147483649);
  EXPECT_EQ(backward(tensors.backward_arguments(), attention.options).message(),
            "capture `document`[0][4] is -2147483649: integers of texts have 32 bits");
  ConstTensorView shared = document;  // every sequence has those of the second
  shared.data = static_cast<const std::int64_t*>(document.data) + document.strides[0];
  shared.strides[0] = 0;
  arguments.modifiers.captures = {&shared, 1};
  EXPECT_EQ(forward(arguments, attention.options).message(),
            "capture `document`[0][3] is 2147483648: integers of texts have 32 bits");
}

TEST(TextMisuse, ScalarsOfInt64BeyondInt32AreErrors) {
  AttentionCase attention = valid_case();
  attention.text = {"", "k < most", {{{"most", DType::int64, 0}, {1}, 3}}};
  CaseTensors tensors(attention);
  tensors.captures[0].set_bits(0, 3);
  EXPECT_TRUE(forward(tensors.forward_arguments(), attention.options).ok());
  tensors.captures[0].set_bits(0, static_cast<std::uint64_t>(std::int64_t{1} << 31));
  EXPECT_EQ(forward(tensors.forward_arguments(), attention.options).message(),
            "capture `most`[0] is 2147483648: integers of texts have 32 bits");
}

TEST(TextMisuse, CapturesWithoutAFunctionAreAnError) {
  const AttentionCase attention = text_case();
  CaseTensors tensors(attention);
  ForwardArguments arguments = tensors.forward_arguments();
  arguments.modifiers.function = nullptr;
  EXPECT_EQ(forward(arguments).message(), "captures are given without a function: give modifiers.function, too");
}

TEST(TextMisuse, OfGradientsIsAnErrorThatNamesThem) {
  const AttentionCase attention = text_case();
  CaseTensors tensors(attention);
  ASSERT_TRUE(forward(tensors.forward_arguments()).ok());
  const auto message_of = [&](const std::function<void(std::vector<TensorView>&)>& change) {
    BackwardArguments arguments = tensors.backward_arguments();
    std::vector<TensorView> views(arguments.d_captures.begin(), arguments.d_captures.end());
    change(views);
    arguments.d_captures = views;
    const Status status = backward(arguments);
    EXPECT_EQ(status.code(), kInvalid);
    return status.message();
  };
  EXPECT_EQ(message_of([](auto& views) { views.pop_back(); }), "1 d_captures are given: the function has 2 captures");
  EXPECT_EQ(message_of([](auto& views) { views[0].shape[0] = 3; }),
            "the gradient of capture `slope` has shape [3]: it must be [4], as the capture is");
  EXPECT_EQ(message_of([](auto& views) { views[0].dtype = DType::float16; }),
            "the gradient of capture `slope` is float16: it must be float32: it is a sum over many scores");
  EXPECT_EQ(message_of([](auto& views) { views[1] = views[0]; }),
            "the gradient of capture `table` is given: the score does not read it as a real number");
}

TEST(TextMisuse, AGradientThatOverlapsAnInputIsAnError) {
  const AttentionCase attention = text_case();
  CaseTensors tensors(attention);
  BackwardArguments arguments = tensors.backward_arguments();
  std::vector<TensorView> views(arguments.d_captures.begin(), arguments.d_captures.end());
  views[0].data = tensors.captures[0].view().data;
  arguments.d_captures = views;
  const Status status = backward(arguments);
  EXPECT_EQ(status.code(), kInvalid);
  EXPECT_NE(status.message().find("d_captures"), std::string::npos) << status.message();
}

TEST(TextMisuse, AJvpIsUnsupported) {
  const AttentionCase attention = text_case();
  CaseTensors tensors(attention);
  const ForwardArguments forward = tensors.forward_arguments();
  JvpArguments arguments{.q = forward.q, .k = forward.k, .v = forward.v, .modifiers = forward.modifiers};
  const Status status = jvp(arguments);
  EXPECT_EQ(status.code(), kUnsupported);
  EXPECT_EQ(status.message(), "modifiers.function is given: no engine has the JVP of a score that a text says");
}

}  // namespace
}  // namespace strobe::test
