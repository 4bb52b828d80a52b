// SPDX-License-Identifier: Apache-2.0
// Plans of the forward on 8-bit tensors, and on K and V stored in 8 bits.
#include <gtest/gtest.h>

#include <string>

#include "call/eight_bit.h"
#include "gpu/plan/plan_problem.h"
#include "kernels/sm90/forward/smem.h"
#include "sm90/forward_plan.h"

namespace strobe::sm90 {
namespace {

using test::config_of;
using test::kH200;
using test::plan_of;
using test::problem_of;

AttentionProblem eight_bit_problem(std::int64_t head_dim, DType dtype) {
  AttentionProblem problem = problem_of(4096, head_dim, head_dim);
  problem.dtype = dtype;
  problem.eight_bit = {.q_rows = 1, .k_rows = 32, .v_rows = 1, .output = DType::bfloat16, .v_rotated = true};
  return problem;
}

TEST(EightBitPlan, EightBitOperandsRoundAsOnTheCpu) {
  for (const std::int64_t head_dim : {64, 128}) {
    const forward::Config config = config_of(eight_bit_problem(head_dim, DType::float8_e4m3));
    EXPECT_EQ(config.operands, Element::e4m3);
    EXPECT_EQ(config.rule.element, Element::bf16);
    EXPECT_EQ(config.rotated_columns, head_dim);
    EXPECT_EQ(config.block_n, kProbabilityKeys);
    EXPECT_LE(smem_plan(config).total_bytes, kMaxSmemBytes);
    EXPECT_EQ(smem_plan(config).scales % 16, 0);
  }
  EXPECT_EQ(config_of(eight_bit_problem(64, DType::int8)).operands, Element::int8);
}

TEST(EightBitPlan, IntegersKeepTheKeysThatTheirProbabilitiesAreRoundedBy) {
  AttentionProblem problem = eight_bit_problem(128, DType::int8);
  problem.seqlen_q = problem.seqlen_k = problem.total_q = problem.total_k = 16384;
  problem.eight_bit.k_rows = problem.eight_bit.v_rows = 128;
  EXPECT_EQ(config_of(problem).block_n, kProbabilityKeys);
  EXPECT_EQ(config_of(problem).keys_per_value_scale, kProbabilityKeys);
  problem.dtype = DType::float8_e4m3;
  EXPECT_EQ(config_of(problem).keys_per_value_scale, forward::kKeysPerScale);
  EXPECT_LE(smem_plan(config_of(problem)).total_bytes, kMaxSmemBytes);
  problem.eight_bit.v_rows = 1;
  EXPECT_EQ(config_of(problem).keys_per_value_scale, 1);
}

TEST(EightBitPlan, EveryHeadDimFits) {
  for (const DType dtype : {DType::int8, DType::float8_e4m3}) {
    for (std::int64_t head_dim = 16; head_dim <= 256; head_dim += 16) {
      for (std::int64_t head_dim_v = 16; head_dim_v <= 256; head_dim_v += 16) {
        AttentionProblem problem = eight_bit_problem(head_dim, dtype);
        problem.head_dim_v = head_dim_v;
        for (const std::int64_t tokens : {4096, 16384}) {
          problem.seqlen_q = problem.seqlen_k = problem.total_q = problem.total_k = tokens;
          for (const bool used : {false, true}) {
            problem.has_seqused_k = used;
            const forward::Config config = config_of(problem);
            EXPECT_GE(config.head_dim, head_dim);
            EXPECT_GE(config.head_dim_v, head_dim_v);
            EXPECT_EQ(config.rotated_columns, head_dim_v);
            EXPECT_LE(smem_plan(config).total_bytes, kMaxSmemBytes) << explain(problem, plan_of(problem));
          }
        }
      }
    }
  }
}

TEST(EightBitPlan, NamesWhatEightBitOperandsLack) {
  const auto message = [](auto change) {
    AttentionProblem problem = eight_bit_problem(128, DType::int8);
    change(problem);
    return std::string(forward_config(problem, kH200).status().message());
  };
  EXPECT_EQ(message([](AttentionProblem& p) { p.head_dim = 72; }),
            "head_dim is 72: the sm90 kernels take multiples of 16 with int8 inputs; the cpu engine takes any");
  EXPECT_EQ(message([](AttentionProblem& p) { p.eight_bit.k_rows = 1; }),
            "k_descale has a scale for each row: the sm90 kernels take one for 32 rows or more");
}

TEST(EightBitPlan, UsedLengthsAreSorted) {
  for (const DType dtype : {DType::int8, DType::float8_e4m3}) {
    AttentionProblem problem = eight_bit_problem(128, dtype);
    problem.has_seqused_k = true;
    const forward::Config config = config_of(problem);
    EXPECT_TRUE(config.rule.varlen);
    EXPECT_EQ(config.schedule, Schedule::sorted);
    EXPECT_LE(smem_plan(config).total_bytes, kMaxSmemBytes);
  }
}

// Whether sequences are packed is the kernel's to see when it runs.
TEST(EightBitPlan, PackedSequencesTakeTheKernelOfUsedLengths) {
  for (const DType dtype : {DType::int8, DType::float8_e4m3}) {
    AttentionProblem packed = eight_bit_problem(128, dtype);
    AttentionProblem used = packed;
    packed.packed_q = packed.packed_k = true;
    used.has_seqused_k = true;
    EXPECT_EQ(config_of(packed), config_of(used));
    EXPECT_EQ(config_of(packed).block_n, kProbabilityKeys);
    EXPECT_EQ(config_of(packed).packed_heads, 1);
  }
}

TEST(EightBitPlan, EightBitOperandsTakeEveryScoreOption) {
  for (const DType dtype : {DType::int8, DType::float8_e4m3}) {
    AttentionProblem problem = eight_bit_problem(128, dtype);
    problem.softcap = 30.0F;
    problem.chunk = 1024;
    problem.modifiers.has_alibi = problem.modifiers.has_sink = true;
    problem.eight_bit.output = DType::float32;
    const forward::Config config = config_of(problem);
    EXPECT_TRUE(config.float_output && config.rule.softcap && config.rule.alibi && config.rule.sink);
    EXPECT_TRUE(config.rule.chunked);
    EXPECT_EQ(config.block_n, kProbabilityKeys);
    EXPECT_LE(smem_plan(config).total_bytes, kMaxSmemBytes);
  }
}

// Results then have the bits of the call on converted tensors.
TEST(EightBitPlan, StoredKeysComeInTheBlocksOf16BitOnes) {
  for (const std::int64_t head_dim : {16, 32, 64, 96, 128, 192, 256}) {
    for (const std::int64_t head_dim_v : {64, 128, 256}) {
      for (const std::int64_t seqlen_q : {1, 64, 512, 16384}) {
        for (const bool packed : {false, true}) {
          AttentionProblem problem = problem_of(seqlen_q, head_dim, head_dim_v);
          problem.causal = CausalMask::bottom_right;
          problem.seqlen_k = 16384;
          problem.packed_q = problem.packed_k = packed;
          const int block_n = config_of(problem).block_n;
          problem.stored = {.dtype = DType::int8, .k_rows = 1, .v_rows = 1};
          const forward::Config config = config_of(problem);
          if ((head_dim <= 128 && head_dim_v <= 128) || head_dim == head_dim_v) {
            EXPECT_EQ(config.block_n, block_n) << explain(problem, plan_of(problem));
          }
          EXPECT_EQ(config.stored, Element::int8);
          EXPECT_GE(config.raw_stages, 1);
          EXPECT_LE(config.consumer_warpgroups, 2);
          EXPECT_LE(smem_plan(config).total_bytes, kMaxSmemBytes) << explain(problem, plan_of(problem));
        }
      }
    }
  }
}

}  // namespace
}  // namespace strobe::sm90
