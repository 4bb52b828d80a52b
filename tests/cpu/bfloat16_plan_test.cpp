// SPDX-License-Identifier: Apache-2.0
// Which calls the bfloat16 kernels take, on emulated matrix tiles or on dot products.
#include <gtest/gtest.h>

#include "case_tensors.h"
#include "needs_unit.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

class Bfloat16Plan : public NeedsUnit {};

AttentionCase plain(DType dtype) {
  AttentionCase attention;
  attention.dtype = dtype;
  attention.heads_q = 2;
  attention.q.rows = 70;
  attention.k.rows = 90;
  return attention;
}

/// What the forward's and the backward's plan round P to, which must agree: the gradients belong to that forward.
DType probability_dtype(const AttentionCase& attention) {
  const CaseTensors tensors(attention);
  const Result<Plan> forward = make_plan(tensors.forward_arguments(), attention.options);
  const Result<Plan> backward = make_plan(tensors.backward_arguments(), attention.options);
  EXPECT_TRUE(forward.ok() && backward.ok());
  if (!forward.ok() || !backward.ok()) return DType::float16;
  EXPECT_EQ(forward->probability_dtype(), backward->probability_dtype());
  const char* unit = cpu::bf16::unit() == cpu::bf16::Unit::tiles ? "AMX tiles" : "AVX512-BF16 dot products";
  EXPECT_EQ(forward->explain().find(unit) != std::string::npos, forward->probability_dtype() == DType::bfloat16);
  return forward->probability_dtype();
}

TEST_F(Bfloat16Plan, TakesBfloat16Alone) {
  EXPECT_EQ(probability_dtype(plain(DType::bfloat16)), DType::bfloat16);
  EXPECT_EQ(probability_dtype(plain(DType::float16)), DType::float32);
  EXPECT_EQ(probability_dtype(plain(DType::float32)), DType::float32);
}

TEST_F(Bfloat16Plan, TakesEveryOption) {
  AttentionCase attention = plain(DType::bfloat16);
  attention.options.causal = CausalMask::bottom_right;
  attention.options.window = {30, 0};
  attention.options.softcap = 20.0F;
  attention.has_sink = true;
  attention.wants_max_logits = true;
  attention.options.dropout = 0.1F;
  attention.alibi = Alibi::per_head;
  attention.bias = {.dtype = DType::bfloat16};
  attention.blocks = {.size = 64};
  EXPECT_EQ(probability_dtype(attention), DType::bfloat16);
}

// Reading K and V is what takes time there; the forward's P is then not rounded.
TEST_F(Bfloat16Plan, LeavesFewQueriesToTheVectorKernels) {
  for (const std::int64_t queries : {8, 9}) {  // of two heads that share their keys
    AttentionCase attention = plain(DType::bfloat16);
    attention.q.rows = queries;
    const CaseTensors tensors(attention);
    const Result<Plan> forward = make_plan(tensors.forward_arguments(), attention.options);
    ASSERT_TRUE(forward.ok());
    EXPECT_EQ(forward->probability_dtype(), queries == 8 ? DType::float32 : DType::bfloat16);
  }
}

}  // namespace
}  // namespace strobe::test
