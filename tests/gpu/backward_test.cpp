// SPDX-License-Identifier: Apache-2.0
// The backward of a GPU engine against the float64 reference, and run many times: from graphs, on several streams, on a
// poisoned workspace, with dS in several parts; with `deterministic` always the same bits.
#include "gpu/call/override.h"
#include "sm90/backward_plan.h"

#include <array>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "captured_graph.h"
#include "device_case.h"
#include "gpu/device_memory.h"
#include "gpu_test.h"

namespace strobe::test {
namespace {

AttentionCase backward_case(std::int64_t seqlen, std::int64_t head_dim, CausalMask causal) {
  AttentionCase attention = plain_case(seqlen, head_dim, causal);
  attention.options.deterministic = true;
  return attention;
}

class GpuBackward : public FamilyTest {
 protected:
  /// One for each design of kernels.
  static std::vector<std::int64_t> head_dims() { return {64, 128, 256, 512}; }

  void expect_matches_reference(const AttentionCase& attention) {
    SCOPED_TRACE(describe(attention));
    DeviceCase one(attention, device());
    one.forward(stream());
    one.backward(stream());
    one.expect_backward_right();
  }
};

INSTANTIATE_TEST_SUITE_P(, GpuBackward, kFamilies, family_name);

TEST_P(GpuBackward, MatchesTheReference) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    for (const std::int64_t head_dim : head_dims()) {
      for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
        for (const bool deterministic : {false, true}) {
          AttentionCase attention = plain_case(500, head_dim, causal);
          attention.dtype = dtype;
          attention.heads_q = 4;
          attention.k.rows = 333;
          attention.options.deterministic = deterministic;
          expect_matches_reference(attention);
        }
      }
    }
  }
}

TEST_P(GpuBackward, TakesSequencesWithoutQueriesOrKeys) {
  for (const std::int64_t head_dim : head_dims()) {
    for (const auto& [queries, keys] : {std::array{0, 100}, std::array{100, 0}, std::array{0, 0}, std::array{1, 1}}) {
      AttentionCase attention = plain_case(queries, head_dim, CausalMask::none);
      attention.k.rows = keys;
      attention.has_sink = true;
      expect_matches_reference(attention);
    }
    AttentionCase packed = plain_case(300, head_dim, CausalMask::bottom_right);
    packed.batch = 3;
    packed.q = {.rows = 300, .cu_seqlens = {0, 0, 280, 280}};
    packed.k = {.rows = 320, .cu_seqlens = {0, 100, 100, 310}};
    expect_matches_reference(packed);
    AttentionCase behind = plain_case(8, head_dim, CausalMask::none);  // the only sequence has no query
    behind.batch = 1;
    behind.q = {.rows = 8, .cu_seqlens = {0, 0}, .seqused = {}, .max_seqlen = 0};
    behind.k = {.rows = 1844, .cu_seqlens = {0, 1844}};
    expect_matches_reference(behind);
  }
}

TEST_P(GpuBackward, SumsScoreGradientsInParts) {
  if (GetParam() != Family::sm90) GTEST_SKIP() << "the sm80 kernels keep no score gradients";
  for (const std::int64_t head_dim : head_dims()) {
    for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
      AttentionCase attention = backward_case(300, head_dim, causal);
      attention.heads_q = 4;
      attention.k.rows = 280;
      for (const std::size_t bytes : {std::size_t{1} << 19U, std::size_t{1} << 17U, std::size_t{1}}) {
        const gpu::Override<sm90::ScoreGradientLimits> override(
            [bytes](sm90::ScoreGradientLimits& limits) { limits = {.bytes = bytes, .most_bytes = bytes}; });
        SCOPED_TRACE(bytes);
        expect_matches_reference(attention);
      }
    }
  }
}

TEST_P(GpuBackward, GivesTheSameBitsEveryTime) {
  for (const std::int64_t head_dim : head_dims()) {
    for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
      DeviceCase(backward_case(1900, head_dim, causal), device()).expect_same_backward(stream(), 100);
    }
  }
}

TEST_P(GpuBackward, TakesAPoisonedWorkspaceAndNoMore) {
  for (const std::int64_t head_dim : head_dims()) {
    for (const bool deterministic : {false, true}) {
      AttentionCase attention = plain_case(450, head_dim, CausalMask::bottom_right);
      attention.options.deterministic = deterministic;
      SCOPED_TRACE(describe(attention));
      DeviceCase(attention, device()).expect_backward_takes_poisoned_workspace(stream());
    }
  }
}

TEST_P(GpuBackward, RejectsAWorkspaceThatIsTooSmall) {
  DeviceCase one(plain_case(100, 128, CausalMask::none), device());
  const BackwardArguments arguments =
      one.tensors.backward_arguments([&](const GuardedTensor& tensor) { return one.copies.place(tensor); });
  const Result<Plan> plan = make_plan(arguments, {}, tested_execution());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  int anything = 0;
  const Status status = plan->run(arguments, {.stream = stream().get(), .workspace = &anything, .workspace_bytes = 4});
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message(), "workspace has 4 bytes: this plan needs " + std::to_string(plan->workspace_size()));
}

TEST_P(GpuBackward, IsReplayedFromAGraph) {
  for (const std::int64_t head_dim : head_dims()) {
    DeviceCase one(backward_case(1000, head_dim, CausalMask::bottom_right), device());
    const auto outputs = one.tensors.backward_outputs();
    const auto both_passes = [&] {
      one.forward(stream());
      one.backward(stream());
    };
    both_passes();
    const auto eager = one.bits(outputs);
    const CapturedGraph graph(device(), stream(), both_passes);
    ASSERT_FALSE(HasFailure());
    for (int round = 0; round < 10; ++round) {
      one.poison(outputs);
      for (int i = 0; i < 100; ++i) ASSERT_TRUE(graph.launch());
      EXPECT_TRUE(one.bits(outputs) == eager) << "head_dim " << head_dim << ", round " << round;
    }
  }
}

/// Seed and offset on the device: a graph reads them in each replay.
TEST_P(GpuBackward, DrawsTheMaskOfTheStateThatItReads) {
  for (const std::int64_t head_dim : {64, 128}) {
    AttentionCase attention = backward_case(700, head_dim, CausalMask::bottom_right);
    attention.options.dropout = 0.3F;
    const auto both_passes = [&](DeviceCase& one) {
      one.forward(stream());
      one.backward(stream());
    };
    const std::array<std::array<std::uint64_t, 2>, 2> states{{{7, 9}, {7, 10}}};
    std::vector<DeviceCase::Bits> wanted;
    for (const auto& [seed, offset] : states) {
      attention.random = {.seed = seed, .offset = offset};
      DeviceCase one(attention, device());
      both_passes(one);
      wanted.push_back(one.bits(one.tensors.backward_outputs()));
    }
    EXPECT_FALSE(wanted[0] == wanted[1]);

    Result<gpu::DeviceMemory> memory = gpu::DeviceMemory::allocate(device(), sizeof(states[0]));
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    ASSERT_TRUE(memory->upload(states[0].data()).ok());
    attention.random = {.on_device = reinterpret_cast<const std::uint64_t*>(memory->data())};
    DeviceCase one(attention, device());
    both_passes(one);
    const CapturedGraph graph(device(), stream(), [&] { both_passes(one); });
    ASSERT_FALSE(HasFailure());
    for (std::size_t i = 0; i < states.size(); ++i) {
      ASSERT_TRUE(memory->upload(states[i].data()).ok());
      one.poison(one.tensors.backward_outputs());
      ASSERT_TRUE(graph.launch());
      EXPECT_TRUE(one.bits(one.tensors.backward_outputs()) == wanted[i]) << head_dim << ", offset " << states[i][1];
    }
  }
}

TEST_P(GpuBackward, RunsOnTwoStreamsAtOnce) {
  const Result<gpu::Stream> other = gpu::Stream::create(device());
  ASSERT_TRUE(other.ok()) << other.status().message();
  const std::array<const gpu::Stream*, 2> streams{&stream(), &*other};
  const std::array<std::unique_ptr<DeviceCase>, 2> cases{
      std::make_unique<DeviceCase>(backward_case(2000, 64, CausalMask::bottom_right), device()),
      std::make_unique<DeviceCase>(backward_case(2000, 256, CausalMask::bottom_right), device())};
  std::array<DeviceCase::Bits, 2> alone;
  for (std::size_t i = 0; i < 2; ++i) {
    cases[i]->forward(*streams[i]);
    cases[i]->backward(*streams[i]);
    alone[i] = cases[i]->bits(cases[i]->tensors.backward_outputs());
    cases[i]->poison(cases[i]->tensors.backward_outputs());
  }
  for (int round = 0; round < 100; ++round) {
    for (std::size_t i = 0; i < 2; ++i) {
      cases[i]->forward(*streams[i]);
      cases[i]->backward(*streams[i]);
    }
  }
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(cases[i]->bits(cases[i]->tensors.backward_outputs()) == alone[i]) << "stream " << i;
  }
}

// One plan, and so one pool of workspaces, on two streams.
TEST_P(GpuBackward, StreamsShareAPlan) {
  const Result<gpu::Stream> other = gpu::Stream::create(device());
  ASSERT_TRUE(other.ok()) << other.status().message();
  DeviceCase one(backward_case(900, 128, CausalMask::none), device());
  const auto outputs = one.tensors.backward_outputs();
  one.forward(stream());
  one.backward(stream());
  const auto alone = one.bits(outputs);
  for (int round = 0; round < 100; ++round) {  // the same values to the same outputs, from two workspaces
    one.backward(stream());
    one.backward(*other);
  }
  EXPECT_TRUE(one.bits(outputs) == alone);
}

// docs/accuracy.md, "NaN and infinity": the reference knows what each of them leads to.
TEST_P(GpuBackward, TakesNaNWhereItIsSeenAndOnlyThere) {
  Random random(1);
  const std::vector<std::int64_t> widths = head_dims();
  for (int round = 0; round < 60; ++round) {
    AttentionCase attention =
        plain_case(random.integer(1, 300), widths[static_cast<std::size_t>(random.integer(0, std::ssize(widths) - 1))],
                   random.one_of({CausalMask::none, CausalMask::bottom_right, CausalMask::top_left}));
    attention.k.rows = random.integer(1, 300);
    attention.options.deterministic = random.chance(0.3);
    attention.seed = static_cast<std::uint64_t>(round);
    SCOPED_TRACE(describe(attention));
    DeviceCase one(attention, device());
    GuardedTensor& input = *std::array{&one.tensors.q, &one.tensors.k, &one.tensors.v, &one.tensors.d_o}[round % 4];
    const std::int64_t index = random.integer(0, input.size() - 1);
    input.set(index, kNaN);
    SCOPED_TRACE("NaN at " + std::to_string(index) + " of input " + std::to_string(round % 4));
    one.copies.upload(input);
    one.forward(stream());
    one.backward(stream());
    one.expect_backward_right();
  }
}

}  // namespace
}  // namespace strobe::test
