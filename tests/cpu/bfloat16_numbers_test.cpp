// SPDX-License-Identifier: Apache-2.0
// Numbers that the bfloat16 units, AMX's and AVX512-BF16's, and the integer rounding treat in ways of their own.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "matches_reference.h"
#include "needs_unit.h"
#include "reference/bound/arithmetic.h"

namespace strobe::test {
namespace {

class Bfloat16Subnormals : public NeedsUnit {};
class Bfloat16NaN : public NeedsUnit {};

constexpr std::int64_t kHeadDim = 32;
constexpr std::int64_t kSeqlen = 70;
constexpr double kSubnormal = 0x1.8p-128;
constexpr double kLarge = 0x1p125;

AttentionCase plain() {
  AttentionCase attention{.dtype = DType::bfloat16, .head_dim = kHeadDim, .head_dim_v = kHeadDim};
  attention.q.rows = kSeqlen;
  attention.k.rows = kSeqlen;
  attention.seed = 11;
  return attention;
}

/// Sets two columns of `tensor`, with alternating signs down the rows.
void set_columns(GuardedTensor& tensor, double value) {
  for (std::int64_t row = 0; row < kSeqlen; ++row) {
    for (std::int64_t column = 0; column < 2; ++column) {
      tensor.set(row * kHeadDim + column, row % (2 + column) == 0 ? value : -value);
    }
  }
}

/// The largest ratio of an error to the bound of an engine that reads subnormal numbers as they are.
double worst_without_the_term(CaseTensors& tensors, const AttentionCase& attention) {
  reference::ArithmeticModel model = reference::arithmetic_of("", DType::bfloat16);
  model.smallest_input = 0.0;
  const auto forward = reference::forward(tensors.forward_arguments(), attention.options, model);
  const auto backward = reference::backward(tensors.backward_arguments(), attention.options, model);
  return std::fmax(reference::worst_element(tensors.lse.view(), forward.lse).ratio,
                   reference::worst_element(tensors.dq.view(), backward.dq).ratio);
}

// Products of a subnormal and a large number that are as large as the others.
TEST_F(Bfloat16Subnormals, OfScoresStayWithinTheBound) {
  for (GuardedTensor CaseTensors::* tiny : {&CaseTensors::q, &CaseTensors::k}) {
    const AttentionCase attention = plain();
    CaseTensors tensors(attention);
    set_columns(tensors.*tiny, kSubnormal);
    set_columns(tiny == &CaseTensors::q ? tensors.k : tensors.q, kLarge);
    expect_tensors_match_reference(tensors, attention);
    EXPECT_GT(worst_without_the_term(tensors, attention), 1.0);
  }
}

TEST_F(Bfloat16Subnormals, OfOutputGradientsStayWithinTheBound) {
  const AttentionCase attention = plain();
  CaseTensors tensors(attention);
  set_columns(tensors.d_o, kSubnormal);
  set_columns(tensors.v, kLarge);
  expect_tensors_match_reference(tensors, attention);
}

TEST_F(Bfloat16Subnormals, AloneStayWithinTheBound) {
  for (GuardedTensor CaseTensors::* tiny : {&CaseTensors::q, &CaseTensors::k, &CaseTensors::v, &CaseTensors::d_o}) {
    const AttentionCase attention = plain();
    CaseTensors tensors(attention);
    for (std::int64_t i = 0; i < (tensors.*tiny).size(); ++i)
      (tensors.*tiny).set(i, i % 3 == 0 ? kSubnormal : 0x1p-126);
    expect_tensors_match_reference(tensors, attention);
  }
}

/// NaN whose lower bits are all ones, which would overflow where 16 bits are rounded as integers.
constexpr std::uint32_t kFullNaNs[] = {0x7FFFFFFFU, 0xFFFFFFFFU};

AttentionCase with_terms() {
  AttentionCase attention = plain();
  attention.alibi = Alibi::per_head;
  attention.bias = {.dtype = DType::float32};
  return attention;
}

TEST_F(Bfloat16NaN, OfAnyBitsStaysNaN) {
  for (const std::uint32_t bits : kFullNaNs) {
    const AttentionCase attention = with_terms();
    CaseTensors tensors(attention);
    tensors.bias.set(5 * kSeqlen + 3, std::bit_cast<float>(bits));
    expect_tensors_match_reference(tensors, attention);
    tensors.d_lse.set(9, std::bit_cast<float>(bits));
    expect_tensors_match_reference(tensors, attention);
    tensors.alibi_slopes.set(0, std::bit_cast<float>(bits));
    expect_tensors_match_reference(tensors, attention);
  }
}

// LSE of a NaN row is NaN already. Here it is of the call before the bias became NaN.
TEST_F(Bfloat16NaN, OfABiasReachesDqBesideAnLseThatIsNone) {
  for (const std::uint32_t bits : kFullNaNs) {
    const AttentionCase attention = with_terms();
    CaseTensors tensors(attention);
    ASSERT_TRUE(forward(tensors.forward_arguments(), attention.options).ok());
    tensors.bias.set(5 * kSeqlen + 3, std::bit_cast<float>(bits));
    ASSERT_TRUE(backward(tensors.backward_arguments(), attention.options).ok());
    EXPECT_TRUE(std::isnan(tensors.dq.get(5 * kHeadDim)));
    EXPECT_TRUE(std::isnan(tensors.dk.get(3 * kHeadDim)));
    EXPECT_TRUE(std::isfinite(tensors.dq.get(6 * kHeadDim)));
  }
}

}  // namespace
}  // namespace strobe::test
