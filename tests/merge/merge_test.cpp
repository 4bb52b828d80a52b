// SPDX-License-Identifier: Apache-2.0
// strobe::merge on the CPU against float64, and a forward in parts against the whole.
#include <gtest/gtest.h>

#include "attention/matches_reference.h"
#include "merge_case.h"
#include "reference/bound/arithmetic.h"

namespace strobe::test {
namespace {

TensorView on_host(const GuardedTensor& tensor) { return tensor.view(); }

TEST(Merge, MatchesFloat64) {
  for_each_merge_case(1, [](MergeCase& one) {
    const Status status = merge(one.arguments(on_host));
    ASSERT_TRUE(status.ok()) << status.message();
    one.expect_merged();
  });
}

TEST(Merge, GivesTheSameBitsForAnyNumberOfThreads) {
  MergeCase one({2, 300, 3, 96}, 5, DType::float32, DType::bfloat16, {}, 3);
  ASSERT_TRUE(merge(one.arguments(on_host), {.threads = 1}).ok());
  const auto first = one.o.element_bytes();
  one.o.poison();
  ASSERT_TRUE(merge(one.arguments(on_host), {.threads = 4}).ok());
  EXPECT_TRUE(one.o.element_bytes() == first);
}

TEST(Merge, TakesTensorsWithoutRows) {
  MergeCase one({2, 0, 3, 64}, 2, DType::float32, DType::float32, {}, 1);
  EXPECT_TRUE(merge(one.arguments(on_host)).ok());
}

/// The whole forward's bound holds for its merged parts, plus the merge's own roundings: keys of one call by used
/// lengths, so that the parts' ends are ragged and one part of one sequence is empty.
TEST(Merge, PutsAForwardTogether) {
  constexpr std::int64_t kKeys = 90;
  constexpr std::int64_t kSplit = 40;
  AttentionCase whole;
  whole.batch = 2;
  whole.heads_q = 4;
  whole.heads_kv = 2;
  whole.head_dim = whole.head_dim_v = 32;
  whole.q.rows = 7;
  whole.k.rows = kKeys;
  CaseTensors tensors(whole);
  const ForwardArguments all = tensors.forward_arguments(on_host);
  const auto keys = [](ConstTensorView view, std::int64_t first, std::int64_t count) {
    view.data = static_cast<const float*>(view.data) + first * view.strides[1];
    view.shape[1] = count;
    return view;
  };
  std::vector<float> memory_o(2 * 2 * 7 * 4 * 32);
  std::vector<float> memory_lse(2 * 2 * 7 * 4);
  std::vector<PartialResult> parts;
  for (int i = 0; i < 2; ++i) {
    ForwardArguments part = all;
    const std::int64_t first = i == 0 ? 0 : kSplit;
    part.k = keys(all.k, first, i == 0 ? kSplit : kKeys - kSplit);
    part.v = keys(all.v, first, i == 0 ? kSplit : kKeys - kSplit);
    part.o = tensor(memory_o.data() + i * 2 * 7 * 4 * 32, {2, 7, 4, 32});
    part.lse = tensor(memory_lse.data() + i * 2 * 7 * 4, {2, 4, 7});
    ASSERT_TRUE(forward(part).ok());
    parts.push_back({part.o, part.lse});
  }
  ASSERT_TRUE(merge({parts, all.o, all.lse}).ok());
  expect_forward_matches(tensors, whole, {});
}

}  // namespace
}  // namespace strobe::test
