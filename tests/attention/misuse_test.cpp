// SPDX-License-Identifier: Apache-2.0
// Tensors, options and executions that contradict the contract.
#include "misuse.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>
#include <vector>

#include "matches_reference.h"
#include "reference/bound/reference.h"

namespace strobe::test {
namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

alignas(64) std::array<std::byte, 256> small_workspace;

// What both passes check in the same words: tensors.
template <class Arguments>
std::vector<Misuse<Arguments>> tensor_misuses() {
  using C = Call<Arguments>;
  return {
      {"MissingQ", [](C& c) { c.arguments.q = {}; }, kInvalid,
       "q is missing: give a tensor [batch, seqlen_q, heads_q, head_dim]"},
      {"MissingK", [](C& c) { c.arguments.k = {}; }, kInvalid,
       "k is missing: give a tensor [batch, seqlen_k, heads_kv, head_dim]"},
      {"MissingV", [](C& c) { c.arguments.v = {}; }, kInvalid,
       "v is missing: give a tensor [batch, seqlen_k, heads_kv, head_dim_v]"},
      {"MissingO", [](C& c) { c.arguments.o = {}; }, kInvalid,
       "o is missing: give a tensor [batch, seqlen_q, heads_q, head_dim_v]"},
      {"NullQ", [](C& c) { c.arguments.q.data = nullptr; }, kInvalid, "q has shape [2, 3, 4, 8] and a null pointer"},
      {"NullO", [](C& c) { c.arguments.o.data = nullptr; }, kInvalid, "o has shape [2, 3, 4, 6] and a null pointer"},
      {"MisalignedQ", [](C& c) { c.arguments.q.data = static_cast<const std::byte*>(c.arguments.q.data) + 1; },
       kInvalid, "q's pointer must be aligned to its 4-byte elements"},
      {"RankOfQ", [](C& c) { c.arguments.q.rank = 3; }, kInvalid,
       "q has rank 3: it must have rank 4 [batch, seqlen_q, heads_q, head_dim]"},
      {"RankBeyondTheLargest", [](C& c) { c.arguments.k.rank = 5; }, kInvalid,
       "k has rank 5: it must have rank 4 [batch, seqlen_k, heads_kv, head_dim]"},
      {"NegativeRank", [](C& c) { c.arguments.v.rank = -1; }, kInvalid,
       "v has rank -1: it must have rank 4 [batch, seqlen_k, heads_kv, head_dim_v]"},
      {"NegativeExtent", [](C& c) { c.arguments.q.shape[1] = -3; }, kInvalid,
       "q has shape [2, -3, 4, 8]: an extent must not be negative"},
      {"NegativeStride", [](C& c) { c.arguments.k.strides[1] = -16; }, kInvalid,
       "k has stride -16 on axis 1: strides must not be negative"},
      {"LastStride", [](C& c) { c.arguments.v.strides[3] = 2; }, kInvalid,
       "v has stride 2 on its last axis: it must be 1"},
      {"OverflowingShape", [](C& c) { c.arguments.q.shape = {kLargest, kLargest, 4, 8}; }, kInvalid,
       "q has shape [9223372036854775807, 9223372036854775807, 4, 8]: it must span at most 2^48 elements of memory"},
      {"OverflowingStride", [](C& c) { c.arguments.k.strides[0] = kLargest; }, kInvalid,
       "k has shape [2, 5, 2, 8] and strides [9223372036854775807, 16, 8, 1]: it must span at most 2^48 elements of "
       "memory"},
      {"DTypeOfQ", [](C& c) { c.arguments.q.dtype = DType::int32; }, kInvalid,
       "q is int32: it must be float32, float16 or bfloat16"},
      {"DTypeOfK", [](C& c) { c.arguments.k.dtype = DType::bfloat16; }, kInvalid,
       "k is bfloat16: it must be float32, as q is"},
      {"DTypeOfO", [](C& c) { c.arguments.o.dtype = DType::float16; }, kInvalid,
       "o is float16: it must be float32, as q is"},
      {"DTypeOfLse", [](C& c) { c.arguments.lse.dtype = DType::bfloat16; }, kInvalid,
       "lse is bfloat16: it must be float32"},
      {"ShapeOfLse", [](C& c) { c.arguments.lse.shape = {2, 3, 4}; }, kInvalid,
       "lse has shape [2, 3, 4]: it must be [2, 4, 3] [batch, heads_q, seqlen_q]"},
      {"RankOfLse", [](C& c) { c.arguments.lse.rank = 2; }, kInvalid,
       "lse has rank 2: it must have rank 3 [batch, heads_q, seqlen_q]"},
      {"ShapeOfO", [](C& c) { c.arguments.o.shape[3] = 5; }, kInvalid,
       "o has shape [2, 3, 4, 5]: it must be [2, 3, 4, 6] [batch, seqlen_q, heads_q, head_dim_v]"},
      {"BatchOfK", [](C& c) { c.arguments.k.shape[0] = 1; }, kInvalid,
       "q has batch 2 and k has batch 1: they must be equal"},
      {"HeadDimOfK", [](C& c) { c.arguments.k.shape[3] = 7; }, kInvalid,
       "k has head_dim 7 and q has 8: they must be equal"},
      {"HeadsOfK", [](C& c) { c.arguments.k.shape[2] = 3; }, kInvalid,
       "q has 4 heads and k has 3: heads_q must be a multiple of heads_kv"},
      {"NoHeadsOfK", [](C& c) { c.arguments.k.shape[2] = 0; }, kInvalid,
       "q has 4 heads and k has 0: heads_q must be a multiple of heads_kv"},
      {"HeadsFirst",
       [](C& c) {
         c.arguments.q.shape = {2, 4, 3, 8};
         c.arguments.k.shape = {2, 2, 5, 8};
       },
       kInvalid,
       "q has 3 heads and k has 5: heads_q must be a multiple of heads_kv (are the axes [batch, heads, seqlen, "
       "head_dim]?)"},
      {"SeqlenOfV", [](C& c) { c.arguments.v.shape[1] = 4; }, kInvalid,
       "v has shape [2, 4, 2, 6]: it must be [2, 5, 2, 6] [batch, seqlen_k, heads_kv, head_dim_v]"},
      {"HeadDimTooLarge",
       [](C& c) {
         c.arguments.q.shape[3] = 577;
         c.arguments.k.shape[3] = 577;
       },
       kInvalid, "head_dim is 577: it must be from 1 to 576"},
      {"HeadDimZero", [](C& c) { c.arguments.q.shape[3] = 0; }, kInvalid, "head_dim is 0: it must be from 1 to 576"},
      {"HeadDimOfVTooLarge", [](C& c) { c.arguments.v.shape[3] = 600; }, kInvalid,
       "head_dim_v is 600: it must be from 1 to 512"},
      {"DeviceOfV", [](C& c) { c.arguments.v.device = {DeviceType::cuda, 1}; }, kInvalid,
       "v is on cuda:1 and q on cpu: all tensors must be on one device"},
      {"DeviceIndexOfTheCpu", [](C& c) { c.arguments.q.device.index = 99; }, kInvalid,
       "q is on device 99 of the cpu: its index must be 0"},
  };
}

// Options and the execution.
template <class Arguments>
std::vector<Misuse<Arguments>> option_misuses() {
  using C = Call<Arguments>;
  return {
      {"ScaleNaN", [](C& c) { c.options.scale = std::numeric_limits<float>::quiet_NaN(); }, kInvalid,
       "scale is nan: it must be finite"},
      {"ScaleInfinite", [](C& c) { c.options.scale = -std::numeric_limits<float>::infinity(); }, kInvalid,
       "scale is -inf: it must be finite"},
      {"SoftcapNegative", [](C& c) { c.options.softcap = -1.5F; }, kInvalid,
       "softcap is -1.5: it must be positive, or 0 for none"},
      {"SoftcapNaN", [](C& c) { c.options.softcap = std::numeric_limits<float>::quiet_NaN(); }, kInvalid,
       "softcap is nan: it must be positive, or 0 for none"},
      {"WindowBelowMinusOne", [](C& c) { c.options.window = {3, -2}; }, kInvalid,
       "window is (3, -2): each side must be 0 or more, or -1 for no bound"},
      {"Stream", [](C& c) { c.execution.stream = small_workspace.data(); }, kInvalid,
       "stream is given for tensors on the cpu: it must be null"},
      {"NegativeThreads", [](C& c) { c.execution.threads = -1; }, kInvalid,
       "threads is -1: it must be from 1 to 4096, or 0 for one per hardware thread"},
      {"SmallWorkspace",
       [](C& c) {
         c.execution.threads = 1;
         c.execution.workspace = small_workspace.data();
         c.execution.workspace_bytes = 8;
       },
       kInvalid, "workspace has 8 bytes: this plan needs "},
      {"MisalignedWorkspace",
       [](C& c) {
         c.execution.workspace = small_workspace.data() + 4;
         c.execution.workspace_bytes = std::size_t{1} << 40U;
       },
       kInvalid, "workspace must be aligned to 64 bytes"},
      {"EngineAmpere", [](C& c) { c.execution.engine = Engine::ampere; }, kUnsupported,
       "q is on cpu: the gpu engine takes tensors on a CUDA device"},
      {"EngineGpu", [](C& c) { c.execution.engine = Engine::gpu; }, kUnsupported,
       "q is on cpu: the gpu engine takes tensors on a CUDA device"},
      {"Kernels", [](C& c) { c.execution.kernels = "sm80"; }, kUnsupported,
       "kernels is sm80: the cpu engine has one family"},
      {"EngineHopper", [](C& c) { c.execution.engine = Engine::hopper; }, kUnsupported,
       "q is on cpu: the gpu engine takes tensors on a CUDA device"},
  };
}

std::vector<ForwardMisuse> forward_misuses() {
  const auto view = [](ForwardCall& c) { return c.arguments.q; };
  return {
      {"QDescale", [view](ForwardCall& c) { c.arguments.q_descale = view(c); }, kInvalid,
       "q_descale is given, but q is float32: it belongs to 8-bit inputs"},
      {"KDescale", [view](ForwardCall& c) { c.arguments.k_descale = view(c); }, kInvalid,
       "k_descale is given, but k is float32: it belongs to 8-bit inputs"},
      {"VDescale", [view](ForwardCall& c) { c.arguments.v_descale = view(c); }, kInvalid,
       "v_descale is given, but k is float32: it belongs to 8-bit inputs"},
      {"OOverQ", [](ForwardCall& c) { c.arguments.q.data = c.arguments.o.data; }, kInvalid,
       "o overlaps q: outputs must not share memory with any other tensor"},
      {"LseOverV", [](ForwardCall& c) { c.arguments.v.data = static_cast<float*>(c.arguments.lse.data) + 23; },
       kInvalid, "lse overlaps v: outputs must not share memory with any other tensor"},
      {"LseOverO", [](ForwardCall& c) { c.arguments.lse.data = static_cast<float*>(c.arguments.o.data) + 143; },
       kInvalid, "o overlaps lse: outputs must not share memory with any other tensor"},
      {"OOverCuSeqlens",
       [](ForwardCall& c) {
         c.arguments.sequences.seqused_q = lengths_of({1, 1});
         c.arguments.sequences.seqused_q.data = c.arguments.o.data;
       },
       kInvalid, "o overlaps seqused_q: outputs must not share memory with any other tensor"},
      {"BroadcastO", [](ForwardCall& c) { c.arguments.o.strides[1] = 0; }, kInvalid,
       "o has strides [72, 0, 6, 1] with shape [2, 3, 4, 6]: elements of an output must not share memory"},
  };
}

std::vector<BackwardMisuse> backward_misuses() {
  return {
      {"MissingLse", [](BackwardCall& c) { c.arguments.lse = {}; }, kInvalid,
       "lse is missing: give a tensor [batch, heads_q, seqlen_q]"},
      {"MissingOutputGradient", [](BackwardCall& c) { c.arguments.d_o = {}; }, kInvalid,
       "d_o is missing: give a tensor [batch, seqlen_q, heads_q, head_dim_v]"},
      {"MissingQueryGradient", [](BackwardCall& c) { c.arguments.dq = {}; }, kInvalid,
       "dq is missing: give a tensor [batch, seqlen_q, heads_q, head_dim]"},
      {"ShapeOfKeyGradient", [](BackwardCall& c) { c.arguments.dk.shape[2] = 4; }, kInvalid,
       "dk has shape [2, 5, 4, 8]: it must be [2, 5, 2, 8] [batch, seqlen_k, heads_kv, head_dim]"},
      {"DTypeOfValueGradient", [](BackwardCall& c) { c.arguments.dv.dtype = DType::bfloat16; }, kInvalid,
       "dv is bfloat16: it must be float32, as q is"},
      {"ShapeOfLseGradient", [](BackwardCall& c) { c.arguments.d_lse.shape[1] = 3; }, kInvalid,
       "d_lse has shape [2, 3, 3]: it must be [2, 4, 3] [batch, heads_q, seqlen_q]"},
      {"QueryGradientOverO", [](BackwardCall& c) { c.arguments.o.data = c.arguments.dq.data; }, kInvalid,
       "dq overlaps o: outputs must not share memory with any other tensor"},
      {"KeyGradientOverValueGradient", [](BackwardCall& c) { c.arguments.dk.data = c.arguments.dv.data; }, kInvalid,
       "dk overlaps dv: outputs must not share memory with any other tensor"},
  };
}

TEST(Misuse, OfEveryTensorAndOptionInTheForward) {
  for (const ForwardMisuse& misuse : tensor_misuses<ForwardArguments>()) expect_rejected(valid_case(), misuse);
  for (const ForwardMisuse& misuse : option_misuses<ForwardArguments>()) expect_rejected(valid_case(), misuse);
}

TEST(Misuse, OfEveryTensorAndOptionInTheBackward) {
  for (const BackwardMisuse& misuse : tensor_misuses<BackwardArguments>()) expect_rejected(valid_case(), misuse);
  for (const BackwardMisuse& misuse : option_misuses<BackwardArguments>()) expect_rejected(valid_case(), misuse);
}

TEST(Misuse, OfTheForwardAlone) {
  for (const ForwardMisuse& misuse : forward_misuses()) expect_rejected(valid_case(), misuse);
}

TEST(Misuse, OfTheBackwardAlone) {
  for (const BackwardMisuse& misuse : backward_misuses()) expect_rejected(valid_case(), misuse);
}

TEST(Misuse, OfTheCpuEngineForTensorsOnAGpu) {
  CaseTensors tensors(valid_case());
  ForwardArguments arguments = tensors.forward_arguments();
  for (ConstTensorView* view : {&arguments.q, &arguments.k, &arguments.v}) view->device = {DeviceType::cuda, 0};
  arguments.o.device = arguments.lse.device = {DeviceType::cuda, 0};
  const Status status = forward(arguments, {}, {.engine = Engine::cpu});
  EXPECT_EQ(status.code(), kUnsupported);
  EXPECT_EQ(status.message(), "q is on cuda:0: the cpu engine takes tensors on the cpu");
  EXPECT_TRUE(tensors.o.untouched());
}

// Views that share a buffer without sharing an element are no misuse: q, k and v of one packed projection, o beside
// them.
TEST(Misuse, IsNotToInterleaveTensorsInOneBuffer) {
  const std::int64_t seqlen = 5;
  const std::int64_t head_dim = 8;
  std::vector<float> buffer(seqlen * 4 * head_dim, 0.5F);
  const auto slice = [&buffer](std::int64_t which) {
    TensorView view = tensor(buffer.data() + which * head_dim, {1, seqlen, 1, head_dim});
    view.strides = {seqlen * 4 * head_dim, 4 * head_dim, head_dim, 1};
    return view;
  };
  ForwardArguments arguments;
  arguments.q = slice(0);
  arguments.k = slice(1);
  arguments.v = slice(2);
  arguments.o = slice(3);
  const Status status = forward(arguments);
  EXPECT_TRUE(status.ok()) << status.message();
}

// Inputs may repeat themselves through stride 0.
TEST(Misuse, IsNotToBroadcastAnInput) {
  const AttentionCase attention = valid_case();
  CaseTensors tensors(attention);
  ForwardArguments arguments = tensors.forward_arguments();
  arguments.k.strides[0] = 0;
  arguments.v.strides[2] = 0;
  const Status status = forward(arguments);
  ASSERT_TRUE(status.ok()) << status.message();
  const reference::ForwardResult expected = reference::forward(arguments);
  expect_within_bound(tensors.o, expected.o, "o");
}

}  // namespace
}  // namespace strobe::test
