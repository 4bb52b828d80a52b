// SPDX-License-Identifier: Apache-2.0
// The kernels of a backward overlap one another by programmatic dependent launch: each starts while the one before it
// ends. A kernel that reads too early finds what was there before, which these tests make wrong: two cases take turns
// on one workspace and one O and LSE, back to back, with sequences so short that launches are all there is to do.
// Thousands of gradients are compared bit by bit with what their case gives by itself.
#include <array>
#include <memory>
#include <vector>

#include "attention/matches_reference.h"
#include "device_case.h"
#include "gpu/call/override.h"
#include "gpu/device_memory.h"
#include "gpu_test.h"
#include "reference/bound/arithmetic.h"
#include "sm90/backward_plan.h"

namespace strobe::test {
namespace {

constexpr int kSteps = 64;   // back to back
constexpr int kRounds = 10;  // after each of which the host compares the gradients of all its steps

/// One of the two cases: its inputs on the device and its plans.
struct Turn {
  Turn(const AttentionCase& attention_in, const runtime::CudaDevice& device)
      : attention(attention_in), tensors(attention_in), copies(device) {
    const auto place = [this](const GuardedTensor& tensor) { return copies.place(tensor); };
    forward_arguments = tensors.forward_arguments(place);
    backward_arguments = tensors.backward_arguments(place);
  }

  /// Where another case's forward writes, this one writes, too.
  void share_outputs(const Turn& other) {
    forward_arguments.o = other.forward_arguments.o;
    forward_arguments.lse = other.forward_arguments.lse;
    backward_arguments.o = other.backward_arguments.o;
    backward_arguments.lse = other.backward_arguments.lse;
  }

  /// The gradients go to `to`, one after another.
  void set_gradients(std::byte* to) {
    backward_arguments.dq.data = to;
    backward_arguments.dk.data = to += tensors.dq.element_bytes().size();
    backward_arguments.dv.data = to += tensors.dk.element_bytes().size();
  }

  void run(const gpu::Stream& stream, const gpu::DeviceMemory& workspace) const {
    const Status forward = forward_plan->run(forward_arguments, {.stream = stream.get()});
    ASSERT_TRUE(forward.ok()) << forward.message();
    const Status backward = backward_plan->run(
        backward_arguments,
        {.stream = stream.get(), .workspace = workspace.data(), .workspace_bytes = workspace.bytes()});
    ASSERT_TRUE(backward.ok()) << backward.message();
  }

  AttentionCase attention;
  CaseTensors tensors;
  DeviceCopies copies;
  ForwardArguments forward_arguments;
  BackwardArguments backward_arguments;
  std::optional<Plan> forward_plan, backward_plan;
};

class GpuDependentLaunches : public GpuTest {
 protected:
  void expect_turns_keep_apart(const AttentionCase& attention);
  void expect_nothing_is_read_too_early(std::int64_t head_dim);

 private:
  std::unique_ptr<Turn> make_turn(AttentionCase attention, std::uint64_t seed);
  gpu::DeviceMemory allocate(std::size_t bytes);
  void poison(const gpu::DeviceMemory& memory);
  std::vector<std::byte> gradients_alone(Turn& turn, const gpu::DeviceMemory& workspace);
};

std::unique_ptr<Turn> GpuDependentLaunches::make_turn(AttentionCase attention, std::uint64_t seed) {
  attention.seed = seed;
  auto turn = std::make_unique<Turn>(attention, device());
  const Result<Plan> forward = make_plan(turn->forward_arguments, attention.options);
  const Result<Plan> backward = make_plan(turn->backward_arguments, attention.options);
  EXPECT_TRUE(forward.ok() && backward.ok()) << forward.status().message() << backward.status().message();
  if (!forward.ok() || !backward.ok()) return nullptr;
  turn->forward_plan = *forward;
  turn->backward_plan = *backward;
  return turn;
}

gpu::DeviceMemory GpuDependentLaunches::allocate(std::size_t bytes) {
  Result<gpu::DeviceMemory> memory = gpu::DeviceMemory::allocate(device(), bytes);
  EXPECT_TRUE(memory.ok()) << memory.status().message();
  return memory.ok() ? std::move(*memory) : gpu::DeviceMemory();
}

/// NaN as 16 and as 32 bits.
void GpuDependentLaunches::poison(const gpu::DeviceMemory& memory) {
  const runtime::ContextScope context(device());
  const auto address = reinterpret_cast<runtime::CUdeviceptr>(memory.data());
  ASSERT_EQ(device().driver->MemsetD8Async(address, 0xff, memory.bytes(), stream().get()), runtime::CUDA_SUCCESS);
}

/// The bits of a case with nothing before it, which are right.
std::vector<std::byte> GpuDependentLaunches::gradients_alone(Turn& turn, const gpu::DeviceMemory& workspace) {
  poison(workspace);
  turn.run(stream(), workspace);
  turn.copies.download(turn.tensors.backward_outputs());
  expect_backward_matches(turn.tensors, turn.attention, reference::arithmetic_of("sm90", turn.attention.dtype));
  std::vector<std::byte> all;
  for (const GuardedTensor* const tensor : {&turn.tensors.dq, &turn.tensors.dk, &turn.tensors.dv}) {
    const std::vector<std::byte> bytes = tensor->element_bytes();
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

void GpuDependentLaunches::expect_turns_keep_apart(const AttentionCase& attention) {
  SCOPED_TRACE(describe(attention));
  const std::array<std::unique_ptr<Turn>, 2> turns{make_turn(attention, 1), make_turn(attention, 2)};
  if (HasFailure()) return;
  const gpu::DeviceMemory workspace = allocate(turns[0]->backward_plan->workspace_size());
  turns[1]->share_outputs(*turns[0]);
  const std::array expected{gradients_alone(*turns[0], workspace), gradients_alone(*turns[1], workspace)};
  const std::size_t step_bytes = expected[0].size();
  const gpu::DeviceMemory gradients = allocate(kSteps * step_bytes);
  std::vector<std::byte> results(gradients.bytes());
  for (int round = 0; round < kRounds; ++round) {
    poison(gradients);
    poison(workspace);
    for (int step = 0; step < kSteps && !HasFailure(); ++step) {
      turns[step % 2]->set_gradients(gradients.data() + step * step_bytes);
      turns[step % 2]->run(stream(), workspace);
    }
    ASSERT_TRUE(gradients.download(results.data()).ok());
    for (int step = 0; step < kSteps; ++step) {
      const auto begin = results.begin() + static_cast<std::ptrdiff_t>(step * step_bytes);
      ASSERT_TRUE(std::equal(expected[step % 2].begin(), expected[step % 2].end(), begin))
          << "round " << round << ", step " << step;
    }
  }
}

// At most two blocks of keys: additions of two commute, so that sums of dQ in any order have the same bits.
AttentionCase short_case(std::int64_t seqlen, std::int64_t head_dim, CausalMask causal, bool deterministic) {
  AttentionCase attention = plain_case(seqlen, head_dim, causal);
  attention.options.deterministic = deterministic;
  return attention;
}

void GpuDependentLaunches::expect_nothing_is_read_too_early(std::int64_t head_dim) {
  for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
    for (const bool deterministic : {false, true}) {
      for (const std::int64_t seqlen : {1, 70, 200}) {
        expect_turns_keep_apart(short_case(seqlen, head_dim, causal, deterministic));
      }
    }
  }
}

TEST_F(GpuDependentLaunches, Of64) { expect_nothing_is_read_too_early(64); }
TEST_F(GpuDependentLaunches, Of128) { expect_nothing_is_read_too_early(128); }
TEST_F(GpuDependentLaunches, Of256) { expect_nothing_is_read_too_early(256); }

// Two kernels for each head and block of keys, whose dS lies in the same place.
TEST_F(GpuDependentLaunches, OfParts) {
  const gpu::Override<sm90::ScoreGradientLimits> override(
      [](sm90::ScoreGradientLimits& limits) { limits = {.bytes = 1, .most_bytes = 1}; });
  for (const std::int64_t head_dim : {64, 128, 256}) {
    expect_turns_keep_apart(short_case(200, head_dim, CausalMask::none, true));
  }
}

// A kernel more, which adds up what items that share a block of keys have left.
TEST_F(GpuDependentLaunches, OfItemsThatShareKeys) {
  const gpu::Override<sm90::PartHeads> override([](sm90::PartHeads& heads) { heads = {1}; });
  for (const std::int64_t head_dim : {64, 128, 256}) {
    AttentionCase attention = short_case(200, head_dim, CausalMask::bottom_right, false);
    attention.heads_q = 3 * attention.heads_kv;
    expect_turns_keep_apart(attention);
  }
}

}  // namespace
}  // namespace strobe::test
