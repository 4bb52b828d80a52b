// SPDX-License-Identifier: Apache-2.0
// The Hopper forward run many times, from graphs and from several streams: always the same bits; and NaN where it may
// and where it must not reach the result.
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/matches_reference.h"
#include "device_copies.h"
#include "hopper_test.h"
#include "reference/bound/arithmetic.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

using runtime::CUDA_SUCCESS;

AttentionCase plain_case(std::int64_t seqlen, std::int64_t head_dim, CausalMask causal) {
  AttentionCase attention;
  attention.dtype = DType::bfloat16;
  attention.batch = 2;
  attention.heads_q = attention.heads_kv = 2;
  attention.head_dim = attention.head_dim_v = head_dim;
  attention.q.rows = attention.k.rows = seqlen;
  attention.options.causal = causal;
  attention.placement.alignment = 8;
  return attention;
}

/// A case on the device with its plan.
class DeviceCase {
 public:
  DeviceCase(const AttentionCase& attention, const runtime::CudaDevice& device)
      : tensors(attention), copies(device), options_(attention.options) {
    arguments_ = tensors.forward_arguments([this](const GuardedTensor& tensor) { return copies.place(tensor); });
    const Result<Plan> plan = make_plan(arguments_, options_);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    if (plan.ok()) plan_ = *plan;
  }

  void enqueue(const gpu::Stream& stream) const {
    ASSERT_TRUE(plan_.has_value());
    const Status status = plan_->run(arguments_, {.stream = stream.get()});
    ASSERT_TRUE(status.ok()) << status.message();
  }

  /// Poisons the outputs on the device.
  void poison() {
    for (GuardedTensor* const output : tensors.forward_outputs()) {
      output->poison();
      copies.upload(*output);
    }
  }

  /// What the outputs hold.
  std::vector<std::vector<std::byte>> bits() {
    copies.download(tensors.forward_outputs());
    std::vector<std::vector<std::byte>> all;
    for (const GuardedTensor* const output : tensors.forward_outputs()) all.push_back(output->element_bytes());
    return all;
  }

  CaseTensors tensors;
  DeviceCopies copies;

 private:
  AttentionOptions options_;
  ForwardArguments arguments_;
  std::optional<Plan> plan_;
};

class HopperForward : public HopperTest {};

TEST_F(HopperForward, GivesTheSameBitsEveryTime) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
      DeviceCase one(plain_case(1900, head_dim, causal), device());
      one.enqueue(stream());
      const auto first = one.bits();
      for (int round = 0; round < 100; ++round) {
        one.poison();
        one.enqueue(stream());
        ASSERT_TRUE(one.bits() == first) << "head_dim " << head_dim << ", round " << round;
      }
    }
  }
}

TEST_F(HopperForward, IsReplayedFromAGraph) {
  const runtime::Driver& driver = *device().driver;
  DeviceCase one(plain_case(1000, 128, CausalMask::bottom_right), device());
  one.enqueue(stream());
  const auto eager = one.bits();
  const runtime::ContextScope context(device());
  runtime::CUgraph graph = nullptr;
  runtime::CUgraphExec executable = nullptr;
  ASSERT_EQ(driver.StreamBeginCapture(stream().get(), runtime::CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  one.enqueue(stream());
  ASSERT_EQ(driver.StreamEndCapture(stream().get(), &graph), CUDA_SUCCESS);
  ASSERT_EQ(driver.GraphInstantiate(&executable, graph, 0), CUDA_SUCCESS);
  for (int round = 0; round < 10; ++round) {
    one.poison();
    for (int i = 0; i < 100; ++i) ASSERT_EQ(driver.GraphLaunch(executable, stream().get()), CUDA_SUCCESS);
    EXPECT_TRUE(one.bits() == eager) << "round " << round;
  }
  driver.GraphExecDestroy(executable);
  driver.GraphDestroy(graph);
}

TEST_F(HopperForward, RunsOnTwoStreamsAtOnce) {
  const Result<gpu::Stream> other = gpu::Stream::create(device());
  ASSERT_TRUE(other.ok()) << other.status().message();
  const std::array<const gpu::Stream*, 2> streams{&stream(), &*other};
  const std::array<std::unique_ptr<DeviceCase>, 2> cases{
      std::make_unique<DeviceCase>(plain_case(3000, 64, CausalMask::bottom_right), device()),
      std::make_unique<DeviceCase>(plain_case(3000, 128, CausalMask::bottom_right), device())};
  std::array<std::vector<std::vector<std::byte>>, 2> alone;
  for (std::size_t i = 0; i < 2; ++i) {
    cases[i]->enqueue(*streams[i]);
    alone[i] = cases[i]->bits();
    cases[i]->poison();
  }
  for (int round = 0; round < 100; ++round) {
    for (std::size_t i = 0; i < 2; ++i) cases[i]->enqueue(*streams[i]);
  }
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(cases[i]->bits() == alone[i]) << "stream " << i;
}

// docs/accuracy.md, "NaN and infinity": the reference knows what each of them leads to.
TEST_F(HopperForward, TakesNaNWhereItIsSeenAndOnlyThere) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  Random random(1);
  for (int round = 0; round < 60; ++round) {
    AttentionCase attention =
        plain_case(random.integer(1, 300), random.one_of<std::int64_t>({64, 128}),
                   random.one_of({CausalMask::none, CausalMask::bottom_right, CausalMask::top_left}));
    attention.k.rows = random.integer(1, 300);
    attention.seed = static_cast<std::uint64_t>(round);
    SCOPED_TRACE(describe(attention));
    DeviceCase one(attention, device());
    GuardedTensor& input = *std::array{&one.tensors.q, &one.tensors.k, &one.tensors.v}[round % 3];
    const std::int64_t index = random.integer(0, input.size() - 1);
    input.set(index, kNaN);
    SCOPED_TRACE("NaN at " + std::to_string(index) + " of input " + std::to_string(round % 3));
    one.copies.upload(input);
    one.enqueue(stream());
    one.copies.download(one.tensors.forward_outputs());
    expect_forward_matches(one.tensors, attention, reference::arithmetic_of(Engine::hopper, attention.dtype));
  }
}

}  // namespace
}  // namespace strobe::test
