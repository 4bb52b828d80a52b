// Calls that contradict the contract: the exact code and sentence, and outputs that stay as they were.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "attention_case.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

// batch 2, seqlens 3 and 5, heads 4 over 2, head_dims 8 and 6.
AttentionCase valid_case() {
  AttentionCase attention{.batch = 2, .heads_q = 4, .heads_k = 2, .head_dim = 8, .head_dim_v = 6};
  attention.q.rows = 3;
  attention.k.rows = 5;
  return attention;
}

AttentionCase packed_case() {
  AttentionCase attention = valid_case();
  attention.q = {.rows = 6, .cu_seqlens = {0, 2, 6}, .seqused = {2, 3}};
  attention.k = {.rows = 9, .cu_seqlens = {0, 4, 9}, .seqused = {0, 5}};
  return attention;
}

// A call that can be changed in any way before it runs.
template <class Arguments>
struct Call {
  Arguments arguments;
  AttentionOptions options;
  Execution execution;
};

template <class Arguments>
struct Misuse {
  std::string name;
  std::function<void(Call<Arguments>&)> change;
  StatusCode code = StatusCode::ok;
  std::string message;
};

using ForwardMisuse = Misuse<ForwardArguments>;
using BackwardMisuse = Misuse<BackwardArguments>;
using ForwardCall = Call<ForwardArguments>;
using BackwardCall = Call<BackwardArguments>;

constexpr StatusCode kInvalid = StatusCode::invalid_argument;
constexpr StatusCode kUnsupported = StatusCode::unsupported;

std::array<std::int32_t, 3> lengths;  // what a changed call's lengths point to
alignas(64) std::array<std::byte, 256> small_workspace;

template <class Arguments>
ConstTensorView lengths_of(std::initializer_list<std::int32_t> values) {
  std::copy(values.begin(), values.end(), lengths.begin());
  return tensor(static_cast<const std::int32_t*>(lengths.data()), {static_cast<std::int64_t>(values.size())});
}

// What both passes check in the same words: tensors.
template <class Arguments>
std::vector<Misuse<Arguments>> tensor_misuses() {
  using C = Call<Arguments>;
  return {
      {"MissingQ", [](C& c) { c.arguments.q = {}; }, kInvalid,
       "q is missing: give a tensor [batch, seqlen_q, heads_q, head_dim]"},
      {"MissingK", [](C& c) { c.arguments.k = {}; }, kInvalid,
       "k is missing: give a tensor [batch, seqlen_k, heads_k, head_dim]"},
      {"MissingV", [](C& c) { c.arguments.v = {}; }, kInvalid,
       "v is missing: give a tensor [batch, seqlen_k, heads_k, head_dim_v]"},
      {"MissingO", [](C& c) { c.arguments.o = {}; }, kInvalid,
       "o is missing: give a tensor [batch, seqlen_q, heads_q, head_dim_v]"},
      {"NullQ", [](C& c) { c.arguments.q.data = nullptr; }, kInvalid, "q has shape [2, 3, 4, 8] and a null pointer"},
      {"NullO", [](C& c) { c.arguments.o.data = nullptr; }, kInvalid, "o has shape [2, 3, 4, 6] and a null pointer"},
      {"MisalignedQ", [](C& c) { c.arguments.q.data = static_cast<const std::byte*>(c.arguments.q.data) + 1; },
       kInvalid, "q's pointer must be aligned to its 4-byte elements"},
      {"RankOfQ", [](C& c) { c.arguments.q.rank = 3; }, kInvalid,
       "q has rank 3: it must have rank 4 [batch, seqlen_q, heads_q, head_dim]"},
      {"RankBeyondTheLargest", [](C& c) { c.arguments.k.rank = 5; }, kInvalid,
       "k has rank 5: it must have rank 4 [batch, seqlen_k, heads_k, head_dim]"},
      {"NegativeRank", [](C& c) { c.arguments.v.rank = -1; }, kInvalid,
       "v has rank -1: it must have rank 4 [batch, seqlen_k, heads_k, head_dim_v]"},
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
       "q has 4 heads and k has 3: heads_q must be a multiple of heads_k"},
      {"NoHeadsOfK", [](C& c) { c.arguments.k.shape[2] = 0; }, kInvalid,
       "q has 4 heads and k has 0: heads_q must be a multiple of heads_k"},
      {"SeqlenOfV", [](C& c) { c.arguments.v.shape[1] = 4; }, kInvalid,
       "v has shape [2, 4, 2, 6]: it must be [2, 5, 2, 6] [batch, seqlen_k, heads_k, head_dim_v]"},
      {"HeadDimTooLarge",
       [](C& c) {
         c.arguments.q.shape[3] = 513;
         c.arguments.k.shape[3] = 513;
       },
       kInvalid, "head_dim is 513: it must be from 1 to 512"},
      {"HeadDimZero", [](C& c) { c.arguments.q.shape[3] = 0; }, kInvalid, "head_dim is 0: it must be from 1 to 512"},
      {"HeadDimOfVTooLarge", [](C& c) { c.arguments.v.shape[3] = 600; }, kInvalid,
       "head_dim_v is 600: it must be from 1 to 512"},
      {"DeviceOfV", [](C& c) { c.arguments.v.device = {DeviceType::cuda, 1}; }, kInvalid,
       "v is on cuda:1 and q on cpu: all tensors must be on one device"},
  };
}

// Options, used lengths and the execution.
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
      {"SequsedOfAnotherBatch", [](C& c) { c.arguments.sequences.seqused_k = lengths_of<Arguments>({1, 1, 1}); },
       kInvalid, "seqused_k has shape [3]: it must be [2] [batch]"},
      {"SequsedNegative", [](C& c) { c.arguments.sequences.seqused_q = lengths_of<Arguments>({1, -1}); }, kInvalid,
       "seqused_q[1] is -1: it must be from 0 to the sequence's length, which is 3"},
      {"SequsedTooLong", [](C& c) { c.arguments.sequences.seqused_k = lengths_of<Arguments>({6, 1}); }, kInvalid,
       "seqused_k[0] is 6: it must be from 0 to the sequence's length, which is 5"},
      {"SequsedNull",
       [](C& c) {
         c.arguments.sequences.seqused_k = lengths_of<Arguments>({1, 1});
         c.arguments.sequences.seqused_k.data = nullptr;
       },
       kInvalid, "seqused_k has shape [2] and a null pointer"},
      {"SequsedOfFloats",
       [](C& c) {
         c.arguments.sequences.seqused_q = lengths_of<Arguments>({1, 1});
         c.arguments.sequences.seqused_q.dtype = DType::float32;
       },
       kInvalid, "seqused_q is float32: it must be int32"},
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
       "the ampere engine is not in this build: engine must be automatic, cpu or hopper"},
      {"Float8", [](C& c) { c.arguments.q.dtype = DType::float8_e4m3; }, kUnsupported,
       "q is float8_e4m3: this build computes in float32, float16 and bfloat16"},
  };
}

// Packed layouts, from packed_case().
template <class Arguments>
std::vector<Misuse<Arguments>> packed_misuses() {
  using C = Call<Arguments>;
  return {
      {"RankOfPackedQ", [](C& c) { c.arguments.q.rank = 2; }, kInvalid,
       "q has rank 2: it must have rank 3 [total_q, heads_q, head_dim]"},
      {"CuSeqlensFromOne", [](C& c) { c.arguments.sequences.cu_seqlens_q = lengths_of<Arguments>({1, 2, 6}); },
       kInvalid, "cu_seqlens_q[0] is 1: it must be 0"},
      {"CuSeqlensDecreasing", [](C& c) { c.arguments.sequences.cu_seqlens_k = lengths_of<Arguments>({0, 5, 4}); },
       kInvalid, "cu_seqlens_k[2] is 4 after 5: cumulative lengths must not decrease"},
      {"CuSeqlensNegative", [](C& c) { c.arguments.sequences.cu_seqlens_q = lengths_of<Arguments>({0, -2, 6}); },
       kInvalid, "cu_seqlens_q[1] is -2 after 0: cumulative lengths must not decrease"},
      {"CuSeqlensBeyondTheTotal",
       [](C& c) {
         c.arguments.sequences.seqused_k = {};
         c.arguments.sequences.cu_seqlens_k = lengths_of<Arguments>({0, 4, 10});
       },
       kInvalid, "cu_seqlens_k[2] is 10: it must be at most total_k, which is 9"},
      {"CuSeqlensEmpty", [](C& c) { c.arguments.sequences.cu_seqlens_q = lengths_of<Arguments>({}); }, kInvalid,
       "cu_seqlens_q has shape [0]: it must be [batch + 1]"},
      {"CuSeqlensOfAnotherBatch", [](C& c) { c.arguments.sequences.cu_seqlens_k = lengths_of<Arguments>({0, 9}); },
       kInvalid, "q has batch 2 and k has batch 1: they must be equal"},
      {"CuSeqlensOfFloats", [](C& c) { c.arguments.sequences.cu_seqlens_k.dtype = DType::float32; }, kInvalid,
       "cu_seqlens_k is float32: it must be int32"},
      {"CuSeqlensNull", [](C& c) { c.arguments.sequences.cu_seqlens_k.data = nullptr; }, kInvalid,
       "cu_seqlens_k has shape [3] and a null pointer"},
      {"CuSeqlensElsewhere", [](C& c) { c.arguments.sequences.cu_seqlens_q.device = {DeviceType::cuda, 0}; }, kInvalid,
       "cu_seqlens_q is on cuda:0 and q on cpu: all tensors must be on one device"},
      {"SequsedBeyondItsSequence", [](C& c) { c.arguments.sequences.seqused_q = lengths_of<Arguments>({3, 1}); },
       kInvalid, "seqused_q[0] is 3: it must be from 0 to the sequence's length, which is 2"},
      {"MaxSeqlenTooSmall", [](C& c) { c.arguments.sequences.max_seqlen_q = 3; }, kInvalid,
       "sequence 1 has length 4 in cu_seqlens_q: max_seqlen_q is 3"},
      {"MaxSeqlenNegative", [](C& c) { c.arguments.sequences.max_seqlen_k = -2; }, kInvalid,
       "max_seqlen_k is -2: it must be 0 or more, or -1 for not known"},
      {"ShapeOfPackedLse", [](C& c) { c.arguments.lse.shape = {4, 5}; }, kInvalid,
       "lse has shape [4, 5]: it must be [4, 6] [heads_q, total_q]"},
  };
}

std::vector<ForwardMisuse> forward_misuses() {
  const auto view = [](ForwardCall& c) { return c.arguments.q; };
  return {
      {"QDescale", [view](ForwardCall& c) { c.arguments.q_descale = view(c); }, kUnsupported,
       "q_descale is given, but no engine of this build has float8 inputs"},
      {"KDescale", [view](ForwardCall& c) { c.arguments.k_descale = view(c); }, kUnsupported,
       "k_descale is given, but no engine of this build has float8 inputs"},
      {"VDescale", [view](ForwardCall& c) { c.arguments.v_descale = view(c); }, kUnsupported,
       "v_descale is given, but no engine of this build has float8 inputs"},
      {"PageTable", [view](ForwardCall& c) { c.arguments.page_table = view(c); }, kUnsupported,
       "page_table is given, but no engine of this build has a paged key-value cache"},
      {"OOverQ", [](ForwardCall& c) { c.arguments.q.data = c.arguments.o.data; }, kInvalid,
       "o overlaps q: outputs must not share memory with any other tensor"},
      {"LseOverV", [](ForwardCall& c) { c.arguments.v.data = static_cast<float*>(c.arguments.lse.data) + 23; },
       kInvalid, "lse overlaps v: outputs must not share memory with any other tensor"},
      {"LseOverO", [](ForwardCall& c) { c.arguments.lse.data = static_cast<float*>(c.arguments.o.data) + 143; },
       kInvalid, "o overlaps lse: outputs must not share memory with any other tensor"},
      {"OOverCuSeqlens",
       [](ForwardCall& c) {
         c.arguments.sequences.seqused_q = lengths_of<ForwardArguments>({1, 1});
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
       "dk has shape [2, 5, 4, 8]: it must be [2, 5, 2, 8] [batch, seqlen_k, heads_k, head_dim]"},
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

template <class Arguments>
Status run(const Call<Arguments>& call) {
  if constexpr (std::is_same_v<Arguments, ForwardArguments>) {
    return forward(call.arguments, call.options, call.execution);
  } else {
    return backward(call.arguments, call.options, call.execution);
  }
}

template <class Arguments>
Call<Arguments> call_of(const CaseTensors& tensors) {
  if constexpr (std::is_same_v<Arguments, ForwardArguments>) {
    return {.arguments = tensors.forward_arguments()};
  } else {
    return {.arguments = tensors.backward_arguments()};
  }
}

template <class Arguments>
std::vector<GuardedTensor*> outputs_of(CaseTensors& tensors) {
  if constexpr (std::is_same_v<Arguments, ForwardArguments>) return {&tensors.o, &tensors.lse};
  return {&tensors.dq, &tensors.dk, &tensors.dv};
}

template <class Arguments>
void expect_refused(const AttentionCase& attention, const Misuse<Arguments>& misuse) {
  SCOPED_TRACE(misuse.name);
  CaseTensors tensors(attention);
  Call<Arguments> call = call_of<Arguments>(tensors);
  misuse.change(call);
  const Status status = run(call);
  EXPECT_EQ(status.code(), misuse.code);
  // The bytes that a workspace needs are the engine's own affair: the sentence ends with them.
  if (misuse.name == "SmallWorkspace") {
    EXPECT_TRUE(status.message().starts_with(misuse.message)) << status.message();
  } else {
    EXPECT_EQ(status.message(), misuse.message);
  }
  for (const GuardedTensor* output : outputs_of<Arguments>(tensors)) EXPECT_TRUE(output->untouched());
}

TEST(Misuse, OfEveryTensorAndOptionInTheForward) {
  for (const ForwardMisuse& misuse : tensor_misuses<ForwardArguments>()) expect_refused(valid_case(), misuse);
  for (const ForwardMisuse& misuse : option_misuses<ForwardArguments>()) expect_refused(valid_case(), misuse);
}

TEST(Misuse, OfEveryTensorAndOptionInTheBackward) {
  for (const BackwardMisuse& misuse : tensor_misuses<BackwardArguments>()) expect_refused(valid_case(), misuse);
  for (const BackwardMisuse& misuse : option_misuses<BackwardArguments>()) expect_refused(valid_case(), misuse);
}

TEST(Misuse, OfPackedLengthsInTheForward) {
  for (const ForwardMisuse& misuse : packed_misuses<ForwardArguments>()) expect_refused(packed_case(), misuse);
}

TEST(Misuse, OfPackedLengthsInTheBackward) {
  for (const BackwardMisuse& misuse : packed_misuses<BackwardArguments>()) expect_refused(packed_case(), misuse);
}

TEST(Misuse, OfTheForwardAlone) {
  for (const ForwardMisuse& misuse : forward_misuses()) expect_refused(valid_case(), misuse);
}

TEST(Misuse, OfTheBackwardAlone) {
  for (const BackwardMisuse& misuse : backward_misuses()) expect_refused(valid_case(), misuse);
}

TEST(Misuse, TensorsOnAGpuThatNoEngineServes) {
  CaseTensors tensors(valid_case());
  ForwardArguments arguments = tensors.forward_arguments();
  for (ConstTensorView* view : {&arguments.q, &arguments.k, &arguments.v}) view->device = {DeviceType::cuda, 0};
  arguments.o.device = arguments.lse.device = {DeviceType::cuda, 0};
  EXPECT_EQ(forward(arguments, {}, {.engine = Engine::cpu}).code(), kUnsupported);
  EXPECT_TRUE(tensors.o.untouched());
}

// Views that share a buffer without sharing an element are no misuse: q, k and v of one packed projection, o beside
// them.
TEST(Misuse, IsNotToInterleaveTensorsInOneBuffer) {
  constexpr std::int64_t kSeqlen = 5;
  constexpr std::int64_t kHeadDim = 8;
  std::vector<float> buffer(kSeqlen * 4 * kHeadDim, 0.5F);
  const auto slice = [&buffer](std::int64_t which) {
    TensorView view = tensor(buffer.data() + which * kHeadDim, {1, kSeqlen, 1, kHeadDim});
    view.strides = {kSeqlen * 4 * kHeadDim, 4 * kHeadDim, kHeadDim, 1};
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
