// SPDX-License-Identifier: Apache-2.0
#include "call/tensors.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace strobe::test {
namespace {

template <class Arguments>
class CallTensors : public testing::Test {};

using Calls = testing::Types<ForwardArguments, BackwardArguments, QuantizeArguments, AppendArguments>;
TYPED_TEST_SUITE(CallTensors, Calls);

TYPED_TEST(CallTensors, AreVisitedOnceWithTheRoleOfTheirType) {
  TypeParam arguments;
  std::set<const void*> views;
  for_each_tensor(arguments, [&]<class View>(const CallTensor& tensor, View& view) {
    EXPECT_TRUE(views.insert(&view).second) << tensor.name;
    EXPECT_EQ(tensor.role == TensorRole::output, (std::is_same_v<View, TensorView>)) << tensor.name;
    EXPECT_EQ(find_tensor<TypeParam>(tensor.name)->name, tensor.name);
  });
  EXPECT_EQ(views.size(), tensor_count<TypeParam>());
}

TYPED_TEST(CallTensors, ChecksEndAtTheFirstFailure) {
  const TypeParam arguments;
  std::vector<std::string_view> visited;
  const Status status = check_each_tensor(arguments, [&](const CallTensor& tensor, const auto&) -> Status {
    visited.push_back(tensor.name);
    return visited.size() < 3 ? Status() : Status{StatusCode::invalid_argument, std::string(tensor.name)};
  });
  ASSERT_EQ(visited.size(), 3U);
  EXPECT_EQ(status.message(), visited.back());
}

TEST(CallTensorsOf, APassAreThoseOfItsParts) {
  BackwardArguments arguments;
  std::set<const void*> views;
  for_each_tensor(arguments, [&](const CallTensor&, const auto& view) { views.insert(&view); });
  EXPECT_TRUE(views.contains(&arguments.sequences.seqused_k));
  EXPECT_TRUE(views.contains(&arguments.modifiers.block_mask));
  EXPECT_EQ(find_tensor<BackwardArguments>("page_table"), nullptr);
  EXPECT_EQ(find_tensor<ForwardArguments>("page_table")->role, TensorRole::indices);
}

}  // namespace
}  // namespace strobe::test
