// SPDX-License-Identifier: Apache-2.0
// What is wrong with a merge is said.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "strobe/merge.h"

namespace strobe::test {
namespace {

struct Call {
  Call() {
    for (int i = 0; i < 2; ++i) {
      parts.push_back({tensor(floats.data() + 64 * i, {1, 2, 2, 8}), tensor(floats.data() + 200 + 4 * i, {1, 2, 2})});
    }
    o = tensor(floats.data() + 128, {1, 2, 2, 8});
    lse = tensor(floats.data() + 220, {1, 2, 2});
  }

  std::vector<float> floats = std::vector<float>(256);
  std::vector<PartialResult> parts;
  TensorView o, lse;
};

struct Misuse {
  std::string name;
  std::function<void(Call&)> make;
  std::string message;
};

class MergeMisuse : public testing::TestWithParam<Misuse> {};

TEST_P(MergeMisuse, IsReported) {
  Call call;
  GetParam().make(call);
  const Status status = merge({call.parts, call.o, call.lse});
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message().substr(0, GetParam().message.size()), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    All, MergeMisuse,
    testing::ValuesIn(std::vector<Misuse>{
        {"NoParts", [](Call& c) { c.parts.clear(); }, "0 parts are given: a merge takes from 1 to 256"},
        {"TooManyParts", [](Call& c) { c.parts.resize(257, c.parts[0]); },
         "257 parts are given: a merge takes from 1 to 256"},
        {"NoLse", [](Call& c) { c.parts[1].lse = {}; }, "parts[1].lse"},
        {"OtherShape", [](Call& c) { c.parts[1].o.shape[1] = 1; }, "parts[1].o has shape [1, 1, 2, 8]"},
        {"OtherDtype", [](Call& c) { c.parts[1].o.dtype = DType::float16; }, "parts[1].o is float16"},
        {"IntegerDtype", [](Call& c) { c.parts[0].o.dtype = DType::int32; },
         "parts[0].o is int32: it must be float32, float16 or bfloat16"},
        {"LseOfAnotherShape", [](Call& c) { c.parts[0].lse.shape[2] = 1; }, "parts[0].lse has shape [1, 2, 1]"},
        {"NoOutput", [](Call& c) { c.o = {}; }, "o is missing"},
        {"OutputOfAnotherShape", [](Call& c) { c.o.shape[3] = 4; }, "o has shape [1, 2, 2, 4]"},
        {"OutputIsAPart", [](Call& c) { c.o.data = c.floats.data(); }, "o "},
        {"LseIsAPart", [](Call& c) { c.lse.data = c.floats.data() + 200; }, "lse "},
        {"NullData", [](Call& c) { c.parts[1].o.data = nullptr; }, "parts[1].o"},
        {"WiderThanAnyHead",
         [](Call& c) {
           c.parts.resize(1);
           c.parts[0].o.shape = c.o.shape = {1, 1, 1, 513};
           c.parts[0].lse.shape = c.lse.shape = {1, 1, 1};
         },
         "parts[0].o has 513 columns: a head_dim must be from 1 to 512"},
    }),
    [](const auto& one) { return one.param.name; });

TEST(Merge, TakesNoStreamOnTheCpu) {
  Call call;
  int stream = 0;
  EXPECT_EQ(merge({call.parts, call.o, call.lse}, {.stream = &stream}).code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace strobe::test
