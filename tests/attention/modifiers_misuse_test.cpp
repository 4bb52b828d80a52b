// SPDX-License-Identifier: Apache-2.0
// Score modifiers, their gradients, dropout and the largest scores that contradict the contract.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "misuse.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

constexpr Device kGpu{DeviceType::cuda, 0};

/// valid_case() with every modifier: slopes [4], bias [2, 4, 3, 5], sink [4], a mask of one block, max_logits [2, 4].
AttentionCase modified_case() {
  AttentionCase attention = valid_case();
  attention.alibi = Alibi::per_head;
  attention.bias = {.sharing = {.per_batch = true, .per_head = true}};
  attention.blocks = {.sharing = {}, .visible = 1.0};
  attention.has_sink = true;
  attention.wants_max_logits = true;
  return attention;
}

template <class Arguments>
std::vector<Misuse<Arguments>> slope_misuses() {
  using C = Call<Arguments>;
  return {
      {"RankOfSlopes", [](C& c) { c.arguments.modifiers.alibi_slopes.rank = 3; }, kInvalid,
       "alibi_slopes has rank 3: it must be [heads_q] or [batch, heads_q]"},
      {"NegativeRankOfSlopes", [](C& c) { c.arguments.modifiers.alibi_slopes.rank = -1; }, kInvalid,
       "alibi_slopes has rank -1: it must be [heads_q] or [batch, heads_q]"},
      {"ShapeOfSlopes", [](C& c) { c.arguments.modifiers.alibi_slopes.shape[0] = 2; }, kInvalid,
       "alibi_slopes has shape [2]: it must be [4] [heads_q]"},
      {"ShapeOfSlopesPerBatch",
       [](C& c) {
         ConstTensorView& slopes = c.arguments.modifiers.alibi_slopes;
         slopes.rank = 2;
         slopes.shape = {1, 4};
         slopes.strides = {4, 1};
       },
       kInvalid, "alibi_slopes has shape [1, 4]: it must be [2, 4] [batch, heads_q]"},
      {"DTypeOfSlopes", [](C& c) { c.arguments.modifiers.alibi_slopes.dtype = DType::float16; }, kInvalid,
       "alibi_slopes is float16: it must be float32"},
      {"DeviceOfSlopes", [](C& c) { c.arguments.modifiers.alibi_slopes.device = kGpu; }, kInvalid,
       "alibi_slopes is on cuda:0 and q on cpu: all tensors must be on one device"},
      {"NullSlopes", [](C& c) { c.arguments.modifiers.alibi_slopes.data = nullptr; }, kInvalid,
       "alibi_slopes has shape [4] and a null pointer"},
      {"MisalignedSlopes",
       [](C& c) {
         ConstTensorView& slopes = c.arguments.modifiers.alibi_slopes;
         slopes.data = static_cast<const std::byte*>(slopes.data) + 2;
       },
       kInvalid, "alibi_slopes's pointer must be aligned to its 4-byte elements"},
      {"StrideOfSlopes", [](C& c) { c.arguments.modifiers.alibi_slopes.strides[0] = 2; }, kInvalid,
       "alibi_slopes has stride 2 on its last axis: it must be 1"},
  };
}

template <class Arguments>
std::vector<Misuse<Arguments>> bias_misuses() {
  using C = Call<Arguments>;
  const auto of_shape = [](std::int64_t batch, std::int64_t heads, std::int64_t seqlen_q, std::int64_t seqlen_k) {
    return [=](C& c) { c.arguments.modifiers.bias.shape = {batch, heads, seqlen_q, seqlen_k}; };
  };
  const std::string fits = ": it must be [2 or 1, 4 or 1, 3, 5] [batch or 1, heads_q or 1, seqlen_q, seqlen_k]";
  return {
      {"RankOfBias", [](C& c) { c.arguments.modifiers.bias.rank = 2; }, kInvalid,
       "bias has rank 2: it must have rank 4 [batch or 1, heads_q or 1, seqlen_q, seqlen_k]"},
      {"BatchOfBias", of_shape(3, 4, 3, 5), kInvalid, "bias has shape [3, 4, 3, 5]" + fits},
      {"HeadsOfBias", of_shape(2, 2, 3, 5), kInvalid, "bias has shape [2, 2, 3, 5]" + fits},
      {"QueriesOfBias", of_shape(2, 4, 1, 5), kInvalid, "bias has shape [2, 4, 1, 5]" + fits},
      {"KeysOfBias", of_shape(2, 4, 3, 1), kInvalid, "bias has shape [2, 4, 3, 1]" + fits},
      {"EmptyBias", of_shape(0, 4, 3, 5), kInvalid, "bias has shape [0, 4, 3, 5]" + fits},
      {"IntegerBias", [](C& c) { c.arguments.modifiers.bias.dtype = DType::int32; }, kInvalid,
       "bias is int32: it must be float32, as q is"},
      {"NarrowBias", [](C& c) { c.arguments.modifiers.bias.dtype = DType::bfloat16; }, kInvalid,
       "bias is bfloat16: it must be float32, as q is"},
      {"DeviceOfBias", [](C& c) { c.arguments.modifiers.bias.device = kGpu; }, kInvalid,
       "bias is on cuda:0 and q on cpu: all tensors must be on one device"},
      {"NullBias", [](C& c) { c.arguments.modifiers.bias.data = nullptr; }, kInvalid,
       "bias has shape [2, 4, 3, 5] and a null pointer"},
      {"StrideOfBias", [](C& c) { c.arguments.modifiers.bias.strides[3] = 3; }, kInvalid,
       "bias has stride 3 on its last axis: it must be 1"},
      {"NegativeStrideOfBias", [](C& c) { c.arguments.modifiers.bias.strides[2] = -5; }, kInvalid,
       "bias has stride -5 on axis 2: strides must not be negative"},
  };
}

template <class Arguments>
std::vector<Misuse<Arguments>> sink_misuses() {
  using C = Call<Arguments>;
  return {
      {"RankOfSink", [](C& c) { c.arguments.modifiers.sink.rank = 2; }, kInvalid,
       "sink has rank 2: it must have rank 1 [heads_q]"},
      {"ShapeOfSink", [](C& c) { c.arguments.modifiers.sink.shape[0] = 2; }, kInvalid,
       "sink has shape [2]: it must be [4] [heads_q]"},
      {"DTypeOfSink", [](C& c) { c.arguments.modifiers.sink.dtype = DType::bfloat16; }, kInvalid,
       "sink is bfloat16: it must be float32"},
      {"DeviceOfSink", [](C& c) { c.arguments.modifiers.sink.device = {DeviceType::cuda, 3}; }, kInvalid,
       "sink is on cuda:3 and q on cpu: all tensors must be on one device"},
      {"NullSink", [](C& c) { c.arguments.modifiers.sink.data = nullptr; }, kInvalid,
       "sink has shape [4] and a null pointer"},
      {"StrideOfSink", [](C& c) { c.arguments.modifiers.sink.strides[0] = 0; }, kInvalid,
       "sink has stride 0 on its last axis: it must be 1"},
  };
}

template <class Arguments>
std::vector<Misuse<Arguments>> block_misuses() {
  using C = Call<Arguments>;
  const auto of_shape = [](std::int64_t batch, std::int64_t heads, std::int64_t rows, std::int64_t columns) {
    return [=](C& c) { c.arguments.modifiers.block_mask.shape = {batch, heads, rows, columns}; };
  };
  const auto of_size = [](std::int64_t size) { return [=](C& c) { c.arguments.modifiers.block_size = size; }; };
  const std::string fits =
      ": it must be [2 or 1, 4 or 1, 1, 1] [batch or 1, heads_q or 1, blocks of queries, blocks of keys]";
  return {
      {"RankOfBlockMask", [](C& c) { c.arguments.modifiers.block_mask.rank = 3; }, kInvalid,
       "block_mask has rank 3: it must have rank 4 [batch or 1, heads_q or 1, blocks of queries, blocks of keys]"},
      {"DTypeOfBlockMask", [](C& c) { c.arguments.modifiers.block_mask.dtype = DType::int32; }, kInvalid,
       "block_mask is int32: it must be uint8"},
      {"BatchOfBlockMask", of_shape(4, 1, 1, 1), kInvalid, "block_mask has shape [4, 1, 1, 1]" + fits},
      {"HeadsOfBlockMask", of_shape(1, 2, 1, 1), kInvalid, "block_mask has shape [1, 2, 1, 1]" + fits},
      {"RowsOfBlockMask", of_shape(1, 1, 2, 1), kInvalid, "block_mask has shape [1, 1, 2, 1]" + fits},
      {"ColumnsOfBlockMask", of_shape(1, 1, 1, 2), kInvalid, "block_mask has shape [1, 1, 1, 2]" + fits},
      {"BlocksOf32", of_size(32), kInvalid, "block_size is 32: it must be 64 or 128"},
      {"BlocksOf256", of_size(256), kInvalid, "block_size is 256: it must be 64 or 128"},
      {"BlocksOfNothing", of_size(0), kInvalid, "block_size is 0: it must be 64 or 128"},
      {"NegativeBlocks", of_size(-64), kInvalid, "block_size is -64: it must be 64 or 128"},
      {"DeviceOfBlockMask", [](C& c) { c.arguments.modifiers.block_mask.device = kGpu; }, kInvalid,
       "block_mask is on cuda:0 and q on cpu: all tensors must be on one device"},
      {"NullBlockMask", [](C& c) { c.arguments.modifiers.block_mask.data = nullptr; }, kInvalid,
       "block_mask has shape [1, 1, 1, 1] and a null pointer"},
  };
}

template <class Arguments>
std::vector<Misuse<Arguments>> dropout_and_chunk_misuses() {
  using C = Call<Arguments>;
  const auto dropout = [](float value) { return [=](C& c) { c.options.dropout = value; }; };
  return {
      {"DropoutNegative", dropout(-0.25F), kInvalid, "dropout is -0.25: it must be at least 0 and less than 1"},
      {"DropoutOfAll", dropout(1.0F), kInvalid, "dropout is 1: it must be at least 0 and less than 1"},
      {"DropoutNaN", dropout(std::numeric_limits<float>::quiet_NaN()), kInvalid,
       "dropout is nan: it must be at least 0 and less than 1"},
      {"DropoutInfinite", dropout(std::numeric_limits<float>::infinity()), kInvalid,
       "dropout is inf: it must be at least 0 and less than 1"},
      {"ChunkNegative", [](C& c) { c.options.chunk = -3; }, kInvalid,
       "chunk is -3: it must be positive, or 0 for none"},
  };
}

std::vector<ForwardMisuse> largest_score_misuses() {
  return {
      {"RankOfMaxLogits", [](ForwardCall& c) { c.arguments.max_logits.rank = 1; }, kInvalid,
       "max_logits has rank 1: it must have rank 2 [batch, heads_q]"},
      {"ShapeOfMaxLogits", [](ForwardCall& c) { c.arguments.max_logits.shape = {2, 2}; }, kInvalid,
       "max_logits has shape [2, 2]: it must be [2, 4] [batch, heads_q]"},
      {"DTypeOfMaxLogits", [](ForwardCall& c) { c.arguments.max_logits.dtype = DType::float16; }, kInvalid,
       "max_logits is float16: it must be float32"},
      {"DeviceOfMaxLogits", [](ForwardCall& c) { c.arguments.max_logits.device = kGpu; }, kInvalid,
       "max_logits is on cuda:0 and q on cpu: all tensors must be on one device"},
      {"NullMaxLogits", [](ForwardCall& c) { c.arguments.max_logits.data = nullptr; }, kInvalid,
       "max_logits has shape [2, 4] and a null pointer"},
      {"BroadcastMaxLogits", [](ForwardCall& c) { c.arguments.max_logits.strides[0] = 0; }, kInvalid,
       "max_logits has strides [0, 1] with shape [2, 4]: elements of an output must not share memory"},
      {"MaxLogitsOverQ", [](ForwardCall& c) { c.arguments.q.data = c.arguments.max_logits.data; }, kInvalid,
       "max_logits overlaps q: outputs must not share memory with any other tensor"},
      {"MaxLogitsOverSink", [](ForwardCall& c) { c.arguments.modifiers.sink.data = c.arguments.max_logits.data; },
       kInvalid, "max_logits overlaps sink: outputs must not share memory with any other tensor"},
      {"LseOverMaxLogits", [](ForwardCall& c) { c.arguments.max_logits.data = c.arguments.lse.data; }, kInvalid,
       "lse overlaps max_logits: outputs must not share memory with any other tensor"},
      {"OOverBias", [](ForwardCall& c) { c.arguments.modifiers.bias.data = c.arguments.o.data; }, kInvalid,
       "o overlaps bias: outputs must not share memory with any other tensor"},
      {"OOverSlopes", [](ForwardCall& c) { c.arguments.modifiers.alibi_slopes.data = c.arguments.o.data; }, kInvalid,
       "o overlaps alibi_slopes: outputs must not share memory with any other tensor"},
      {"LseOverBlockMask", [](ForwardCall& c) { c.arguments.modifiers.block_mask.data = c.arguments.lse.data; },
       kInvalid, "lse overlaps block_mask: outputs must not share memory with any other tensor"},
  };
}

std::vector<BackwardMisuse> modifier_gradient_misuses() {
  return {
      {"BiasGradientWithoutBias", [](BackwardCall& c) { c.arguments.modifiers.bias = {}; }, kInvalid,
       "d_bias is given without a bias: give modifiers.bias, too"},
      {"SinkGradientWithoutSink", [](BackwardCall& c) { c.arguments.modifiers.sink = {}; }, kInvalid,
       "d_sink is given without a sink: give modifiers.sink, too"},
      {"RankOfBiasGradient", [](BackwardCall& c) { c.arguments.d_bias.rank = 3; }, kInvalid,
       "d_bias has rank 3: it must have rank 4 [batch or 1, heads_q or 1, seqlen_q, seqlen_k]"},
      {"ShapeOfBiasGradient", [](BackwardCall& c) { c.arguments.d_bias.shape[0] = 1; }, kInvalid,
       "d_bias has shape [1, 4, 3, 5]: it must be [2, 4, 3, 5] as bias is"},
      {"DTypeOfBiasGradient", [](BackwardCall& c) { c.arguments.d_bias.dtype = DType::bfloat16; }, kInvalid,
       "d_bias is bfloat16: it must be float32: it is a sum over many rows"},
      {"DeviceOfBiasGradient", [](BackwardCall& c) { c.arguments.d_bias.device = kGpu; }, kInvalid,
       "d_bias is on cuda:0 and q on cpu: all tensors must be on one device"},
      {"NullBiasGradient", [](BackwardCall& c) { c.arguments.d_bias.data = nullptr; }, kInvalid,
       "d_bias has shape [2, 4, 3, 5] and a null pointer"},
      {"BroadcastBiasGradient", [](BackwardCall& c) { c.arguments.d_bias.strides[1] = 0; }, kInvalid,
       "d_bias has strides [60, 0, 5, 1] with shape [2, 4, 3, 5]: elements of an output must not share memory"},
      {"BiasGradientOverBias", [](BackwardCall& c) { c.arguments.modifiers.bias.data = c.arguments.d_bias.data; },
       kInvalid, "d_bias overlaps bias: outputs must not share memory with any other tensor"},
      {"KeyGradientOverBiasGradient", [](BackwardCall& c) { c.arguments.d_bias.data = c.arguments.dk.data; }, kInvalid,
       "dk overlaps d_bias: outputs must not share memory with any other tensor"},
      {"RankOfSinkGradient", [](BackwardCall& c) { c.arguments.d_sink.rank = 2; }, kInvalid,
       "d_sink has rank 2: it must have rank 1 [heads_q]"},
      {"ShapeOfSinkGradient", [](BackwardCall& c) { c.arguments.d_sink.shape[0] = 5; }, kInvalid,
       "d_sink has shape [5]: it must be [4] [heads_q]"},
      {"DTypeOfSinkGradient", [](BackwardCall& c) { c.arguments.d_sink.dtype = DType::int32; }, kInvalid,
       "d_sink is int32: it must be float32"},
      {"DeviceOfSinkGradient", [](BackwardCall& c) { c.arguments.d_sink.device = kGpu; }, kInvalid,
       "d_sink is on cuda:0 and q on cpu: all tensors must be on one device"},
      {"NullSinkGradient", [](BackwardCall& c) { c.arguments.d_sink.data = nullptr; }, kInvalid,
       "d_sink has shape [4] and a null pointer"},
      {"SinkGradientOverSink", [](BackwardCall& c) { c.arguments.modifiers.sink.data = c.arguments.d_sink.data; },
       kInvalid, "d_sink overlaps sink: outputs must not share memory with any other tensor"},
  };
}

template <class Arguments>
void expect_modifiers_rejected() {
  for (const auto& table : {slope_misuses<Arguments>(), bias_misuses<Arguments>(), sink_misuses<Arguments>(),
                            block_misuses<Arguments>(), dropout_and_chunk_misuses<Arguments>()}) {
    for (const Misuse<Arguments>& misuse : table) expect_rejected(modified_case(), misuse);
  }
}

TEST(Misuse, OfModifiersInTheForward) { expect_modifiers_rejected<ForwardArguments>(); }

TEST(Misuse, OfModifiersInTheBackward) { expect_modifiers_rejected<BackwardArguments>(); }

TEST(Misuse, OfTheLargestScores) {
  for (const ForwardMisuse& misuse : largest_score_misuses()) expect_rejected(modified_case(), misuse);
}

TEST(Misuse, OfTheModifiersGradients) {
  for (const BackwardMisuse& misuse : modifier_gradient_misuses()) expect_rejected(modified_case(), misuse);
}

TEST(Misuse, OfABiasForSixteenBitInputs) {
  AttentionCase attention = modified_case();
  attention.dtype = DType::bfloat16;
  expect_rejected<ForwardArguments>(
      attention, {"BiasOfAnotherDType", [](ForwardCall& c) { c.arguments.modifiers.bias.dtype = DType::float16; },
                  kInvalid, "bias is float16: it must be float32 or bfloat16, as q is"});
}

TEST(Misuse, OfABiasWithPackedSequences) {
  const auto give_bias = [](auto& call) {
    static const float kBias[1] = {};
    call.arguments.modifiers.bias = tensor(kBias, {1, 1, 1, 1});
  };
  AttentionCase attention = valid_case();
  attention.k = {.rows = 9, .cu_seqlens = {0, 4, 9}};
  expect_rejected<ForwardArguments>(
      attention, {"PackedKeys", give_bias, kInvalid, "bias is given with cu_seqlens_k: a bias needs batched q and k"});
  attention.q = {.rows = 6, .cu_seqlens = {0, 2, 6}};
  expect_rejected<ForwardArguments>(attention, {"PackedQueries", give_bias, kInvalid,
                                                "bias is given with cu_seqlens_q: a bias needs batched q and k"});
  expect_rejected<BackwardArguments>(attention, {"PackedQueries", give_bias, kInvalid,
                                                 "bias is given with cu_seqlens_q: a bias needs batched q and k"});
}

TEST(Misuse, OfAPlanForOtherModifiers) {
  CaseTensors tensors(modified_case());
  const Result<Plan> plan = make_plan(tensors.forward_arguments());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const auto expect_other_plan_needed = [&](auto change) {
    ForwardArguments arguments = tensors.forward_arguments();
    change(arguments);
    const Status status = plan->run(arguments);
    EXPECT_EQ(status.code(), kInvalid);
    EXPECT_EQ(status.message(), "the plan was made for another pass, other shapes or dtypes: make a new plan");
    EXPECT_TRUE(tensors.o.untouched());
  };
  expect_other_plan_needed([](ForwardArguments& a) { a.modifiers.alibi_slopes = {}; });
  expect_other_plan_needed([](ForwardArguments& a) { a.modifiers.bias = {}; });
  expect_other_plan_needed([](ForwardArguments& a) { a.modifiers.bias.shape[0] = 1; });
  expect_other_plan_needed([](ForwardArguments& a) { a.modifiers.sink = {}; });
  expect_other_plan_needed([](ForwardArguments& a) { a.modifiers.block_mask = {}; });
  expect_other_plan_needed([](ForwardArguments& a) { a.modifiers.block_size = 64; });
  expect_other_plan_needed([](ForwardArguments& a) { a.max_logits = {}; });
}

}  // namespace
}  // namespace strobe::test
