// SPDX-License-Identifier: Apache-2.0
// qv: scores that are sums of two products, of q with k and of qv with v. Random configurations have it beside every
// other option.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "c_call.h"
#include "matches_reference.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

AttentionCase with_qv(DType dtype, std::int64_t head_dim, std::int64_t head_dim_v, std::int64_t queries,
                      std::int64_t keys) {
  AttentionCase attention;
  attention.dtype = dtype;
  attention.batch = 2;
  attention.heads_q = 4;
  attention.heads_kv = 2;
  attention.head_dim = head_dim;
  attention.head_dim_v = head_dim_v;
  attention.q = {.rows = queries};
  attention.k = {.rows = keys};
  attention.has_qv = true;
  attention.seed = 1;
  return attention;
}

// The columns of DeepSeek's absorbed heads, and others that fill no vector.
TEST(QueryValues, MatchTheReference) {
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    for (const auto& [head_dim, head_dim_v] : {std::pair{64, 512}, std::pair{576, 512}, std::pair{5, 19}}) {
      for (const std::int64_t queries : {1, 6, 70}) {
        AttentionCase attention = with_qv(dtype, head_dim, head_dim_v, queries, 90);
        attention.options.causal = CausalMask::bottom_right;
        expect_case_matches_reference(attention);
      }
    }
  }
}

// One key head for every query head: up to 32 rows take the kernels for few queries, the others those of tiles.
TEST(QueryValues, OneKeyHeadForManyQueryHeads) {
  for (const std::int64_t heads : {8, 16, 128}) {
    AttentionCase attention = with_qv(DType::bfloat16, 64, 512, 2, 300);
    attention.heads_q = heads;
    attention.heads_kv = 1;
    attention.wants_lse = heads != 16;
    expect_case_matches_reference(attention);
  }
}

/// The elements of `left` and, behind each row, those of `right`.
void join(GuardedTensor& joined, const GuardedTensor& left, const GuardedTensor& right, std::int64_t left_columns,
          std::int64_t right_columns) {
  const std::int64_t columns = left_columns + right_columns;
  for (std::int64_t index = 0; index < joined.size(); ++index) {
    const std::int64_t row = index / columns;
    const std::int64_t column = index % columns;
    joined.set(index, column < left_columns ? left.get(row * left_columns + column)
                                            : right.get(row * right_columns + column - left_columns));
  }
}

// Of float32 tiles, whose products are summed column by column; with a large scale rows have normalizers of their own.
TEST(QueryValues, HaveTheBitsOfJoinedColumns) {
  for (const float scale : {0.1F, 30.0F}) {
    AttentionCase attention = with_qv(DType::float32, 64, 32, 70, 90);
    attention.options.scale = scale;
    attention.options.causal = CausalMask::bottom_right;
    CaseTensors tensors(attention);
    AttentionCase plain = attention;
    plain.has_qv = false;
    plain.head_dim = 96;
    CaseTensors joined(plain);
    join(joined.q, tensors.q, tensors.qv, 64, 32);
    join(joined.k, tensors.k, tensors.v, 64, 32);
    for (std::int64_t index = 0; index < tensors.v.size(); ++index) joined.v.set(index, tensors.v.get(index));
    for (std::int64_t index = 0; index < tensors.d_o.size(); ++index) joined.d_o.set(index, tensors.d_o.get(index));
    for (std::int64_t index = 0; index < tensors.d_lse.size(); ++index) {
      joined.d_lse.set(index, tensors.d_lse.get(index));
    }
    for (CaseTensors* one : {&tensors, &joined}) {
      ASSERT_TRUE(forward(one->forward_arguments(), attention.options).ok());
      ASSERT_TRUE(backward(one->backward_arguments(), attention.options).ok());
    }
    EXPECT_EQ(tensors.o.element_bytes(), joined.o.element_bytes());
    EXPECT_EQ(tensors.lse.element_bytes(), joined.lse.element_bytes());
    for (std::int64_t index = 0; index < joined.dq.size(); ++index) {
      const std::int64_t row = index / 96;
      const std::int64_t column = index % 96;
      const double own = column < 64 ? tensors.dq.get(row * 64 + column) : tensors.dqv.get(row * 32 + column - 64);
      ASSERT_EQ(own, joined.dq.get(index)) << "dq or dqv of row " << row << ", column " << column;
    }
    for (std::int64_t index = 0; index < joined.dk.size(); ++index) {
      const std::int64_t row = index / 96;
      const std::int64_t column = index % 96;
      if (column < 64) {
        ASSERT_EQ(tensors.dk.get(row * 64 + column), joined.dk.get(index)) << row << ' ' << column;
        continue;
      }
      const std::int64_t of_v = row * 32 + column - 64;  // the sum is rounded once
      const double sum = joined.dv.get(of_v) + joined.dk.get(index);
      const double reach = std::fabs(joined.dv.get(of_v)) + std::fabs(joined.dk.get(index));
      ASSERT_NEAR(tensors.dv.get(of_v), sum, reach * 0x1p-22) << row << ' ' << column;
    }
  }
}

TEST(QueryValues, ScaleCountsTheColumnsOfBothProducts) {
  AttentionCase attention = with_qv(DType::float32, 64, 36, 4, 8);
  CaseTensors tensors(attention);
  ASSERT_TRUE(forward(tensors.forward_arguments(), attention.options).ok());
  const std::vector<std::byte> by_default = tensors.o.element_bytes();
  attention.options.scale = 0.1F;
  ASSERT_TRUE(forward(tensors.forward_arguments(), attention.options).ok());
  EXPECT_EQ(tensors.o.element_bytes(), by_default);
}

TEST(QueryValues, InC) {
  const AttentionCase attention = with_qv(DType::float32, 16, 24, 5, 9);
  CaseTensors tensors(attention);
  ASSERT_TRUE(call_from_c(tensors.forward_arguments(), attention.options).ok());
  expect_forward_matches(tensors, attention);
  ASSERT_TRUE(call_from_c(tensors.backward_arguments(), attention.options).ok());
  expect_backward_matches(tensors, attention);
}

TEST(QueryValues, AreInThePlan) {
  const AttentionCase attention = with_qv(DType::bfloat16, 64, 512, 70, 90);
  const CaseTensors tensors(attention);
  const Result<Plan> plan = make_plan(tensors.forward_arguments());
  ASSERT_TRUE(plan.ok());
  EXPECT_NE(plan->explain().find("qv            its products with V join those of Q with K"), std::string::npos);
}

TEST(QueryValues, MisuseIsReported) {
  const AttentionCase attention = with_qv(DType::float32, 8, 6, 3, 5);
  const CaseTensors tensors(attention);
  const auto of_forward = [&](const std::function<void(ForwardArguments&)>& change) {
    ForwardArguments arguments = tensors.forward_arguments();
    change(arguments);
    return forward(arguments).message();
  };
  EXPECT_EQ(of_forward([](ForwardArguments& a) { a.qv.shape[3] = 8; }),
            "qv has shape [2, 3, 4, 8]: it must be [2, 3, 4, 6] [batch, seqlen_q, heads_q, head_dim_v]");
  EXPECT_EQ(of_forward([](ForwardArguments& a) { a.qv.dtype = DType::bfloat16; }),
            "qv is bfloat16: it must be float32, as q is");
  EXPECT_EQ(of_forward([](ForwardArguments& a) { a.o.data = const_cast<void*>(a.qv.data); }),
            "o overlaps qv: outputs must not share memory with any other tensor");
  const auto of_backward = [&](const std::function<void(BackwardArguments&)>& change) {
    BackwardArguments arguments = tensors.backward_arguments();
    change(arguments);
    return backward(arguments).message();
  };
  EXPECT_EQ(of_backward([](BackwardArguments& a) { a.dqv = {}; }),
            "dqv is missing: give a tensor [batch, seqlen_q, heads_q, head_dim_v]");
  EXPECT_EQ(of_backward([](BackwardArguments& a) { a.qv = {}; }), "dqv is given without qv: give qv, too");
}

}  // namespace
}  // namespace strobe::test
