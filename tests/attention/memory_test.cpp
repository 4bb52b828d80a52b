// SPDX-License-Identifier: Apache-2.0
// Memory is O(seqlen): at seqlen 65,536 the process grows by less than 64 MB over inputs and outputs, where S alone
// would take 16 GiB.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "io/memory.h"
#include "random.h"
#include "reference/bound/reference.h"
#include "strobe/attention.h"

namespace strobe::test {
namespace {

constexpr std::int64_t kSeqlen = 65536;
constexpr std::int64_t kHeadDim = 64;
constexpr std::int64_t kAllowedGrowth = 64'000'000;

std::vector<float> random_values(Random& random) {
  std::vector<float> values(kSeqlen * kHeadDim);
  for (float& value : values) value = static_cast<float>(random.normal());
  return values;
}

TensorView whole(std::vector<float>& values) { return tensor(values.data(), {1, kSeqlen, 1, kHeadDim}); }

// Three rows of a whole tensor, for the reference: the first, the middle and the last but one.
TensorView sample(TensorView view) {
  view.shape[1] = 3;
  view.strides[1] = (kSeqlen / 2 - 1) * kHeadDim;
  return view;
}

class LongSequence : public testing::Test {
 protected:
  ForwardArguments forward_arguments() {
    ForwardArguments arguments;
    arguments.q = whole(q_);
    arguments.k = whole(k_);
    arguments.v = whole(v_);
    arguments.o = whole(o_);
    arguments.lse = tensor(lse_.data(), {1, 1, kSeqlen});
    return arguments;
  }

  BackwardArguments backward_arguments() {
    const ForwardArguments from = forward_arguments();
    BackwardArguments arguments;
    arguments.q = from.q;
    arguments.k = from.k;
    arguments.v = from.v;
    arguments.o = from.o;
    arguments.lse = from.lse;
    arguments.d_o = whole(d_o_);
    arguments.dq = whole(dq_);
    arguments.dk = whole(dk_);
    arguments.dv = whole(dv_);
    return arguments;
  }

  Random random_{1};
  std::vector<float> q_ = random_values(random_);
  std::vector<float> k_ = random_values(random_);
  std::vector<float> v_ = random_values(random_);
  std::vector<float> d_o_ = random_values(random_);
  std::vector<float> o_ = std::vector<float>(kSeqlen * kHeadDim, 0.0F);
  std::vector<float> lse_ = std::vector<float>(kSeqlen, 0.0F);
  std::vector<float> dq_ = std::vector<float>(kSeqlen * kHeadDim, 0.0F);
  std::vector<float> dk_ = std::vector<float>(kSeqlen * kHeadDim, 0.0F);
  std::vector<float> dv_ = std::vector<float>(kSeqlen * kHeadDim, 0.0F);
};

TEST_F(LongSequence, ForwardAndBackwardGrowTheProcessByLessThan64Megabytes) {
  ASSERT_TRUE(io::reset_peak());
  const std::int64_t before = io::peak_resident_bytes();
  ASSERT_GT(before, 0);
  ASSERT_TRUE(forward(forward_arguments()).ok());
  const std::int64_t after_forward = io::peak_resident_bytes();
  EXPECT_LT(after_forward - before, kAllowedGrowth);
  ASSERT_TRUE(backward(backward_arguments()).ok());
  EXPECT_LT(io::peak_resident_bytes() - before, kAllowedGrowth);
  RecordProperty("forward_growth_bytes", std::to_string(after_forward - before));
  RecordProperty("growth_bytes", std::to_string(io::peak_resident_bytes() - before));

  ForwardArguments sampled = forward_arguments();
  sampled.q = sample(whole(q_));
  sampled.o = sample(whole(o_));
  const reference::ForwardResult expected = reference::forward(sampled);
  EXPECT_LE(reference::worst_element(sampled.o, expected.o).ratio, 1.0);

  BackwardArguments sampled_backward = backward_arguments();
  sampled_backward.q = sample(whole(q_));
  sampled_backward.d_o = sample(whole(d_o_));
  sampled_backward.dq = sample(whole(dq_));
  const reference::BackwardResult gradients = reference::backward(sampled_backward);
  EXPECT_LE(reference::worst_element(sampled_backward.dq, gradients.dq).ratio, 1.0);
}

}  // namespace
}  // namespace strobe::test
