// SPDX-License-Identifier: Apache-2.0
#include "call/same_layout.h"

#include <gtest/gtest.h>

#include <functional>
#include <string_view>
#include <vector>

namespace strobe::test {
namespace {

template <class Arguments>
class SameLayout : public testing::Test {};

using Passes = testing::Types<ForwardArguments, BackwardArguments, JvpArguments>;
TYPED_TEST_SUITE(SameLayout, Passes);

/// Every tensor given, none of them in memory.
template <class Arguments>
Arguments with_every_tensor() {
  Arguments arguments;
  for_each_tensor(arguments, [](const CallTensor&, auto& view) {
    view.rank = 2;
    view.shape = {3, 4};
    view.strides = {4, 1};
  });
  return arguments;
}

TYPED_TEST(SameLayout, DoesNotDependOnMemoryAndSeeds) {
  std::vector<float> memory(12);
  const TypeParam one = with_every_tensor<TypeParam>();
  TypeParam other = one;
  for_each_tensor(other, [&](const CallTensor&, auto& view) { view.data = memory.data(); });
  other.random = {.seed = 5, .offset = 6, .on_device = nullptr};
  EXPECT_TRUE(has_same_layout(one, other));
  EXPECT_TRUE(has_same_layout(TypeParam(), TypeParam()));
}

TYPED_TEST(SameLayout, DependsOnAllElseOfEachTensor) {
  using Change = std::function<void(ConstTensorView&)>;
  const std::vector<Change> changes = {[](ConstTensorView& view) { view.rank = 0; },
                                       [](ConstTensorView& view) { view.rank = 1; },
                                       [](ConstTensorView& view) { view.shape[1] = 5; },
                                       [](ConstTensorView& view) { view.strides[0] = 8; },
                                       [](ConstTensorView& view) { view.dtype = DType::int8; },
                                       [](ConstTensorView& view) { view.device.type = DeviceType::cuda; },
                                       [](ConstTensorView& view) { view.device.index = 1; }};
  const TypeParam one = with_every_tensor<TypeParam>();
  for (std::size_t change = 0; change < changes.size(); ++change) {
    for (const CallTensor& tensor : kTensors<TypeParam>) {
      TypeParam other = one;
      for_each_tensor(other, [&](const CallTensor& visited, auto& view) {
        if (visited.name != tensor.name) return;
        ConstTensorView changed = view;
        changes[change](changed);
        view.dtype = changed.dtype;
        view.device = changed.device;
        view.rank = changed.rank;
        view.shape = changed.shape;
        view.strides = changed.strides;
      });
      EXPECT_FALSE(has_same_layout(one, other)) << tensor.name << ", change " << change;
    }
  }
}

TYPED_TEST(SameLayout, DependsOnNumbers) {
  const TypeParam one = with_every_tensor<TypeParam>();
  TypeParam other = one;
  other.sequences.max_seqlen_q = 7;
  EXPECT_FALSE(has_same_layout(one, other));
  other = one;
  other.modifiers.block_size = 64;
  EXPECT_FALSE(has_same_layout(one, other));
}

TEST(SameLayoutOfForwards, DependsOnWhetherValuesAreRotated) {
  const ForwardArguments one;
  ForwardArguments other;
  other.v_rotation = {.given = true, .seed = 1};
  EXPECT_FALSE(has_same_layout(one, other));
  ForwardArguments third = other;
  third.v_rotation.seed = 2;
  EXPECT_TRUE(has_same_layout(other, third));
}

}  // namespace
}  // namespace strobe::test
