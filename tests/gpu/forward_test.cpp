// SPDX-License-Identifier: Apache-2.0
// The Hopper forward run many times, from graphs and from several streams: always the same bits; and NaN where it may
// and where it must not reach the result.
#include <array>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "attention/matches_reference.h"
#include "captured_graph.h"
#include "device_case.h"
#include "gpu_test.h"
#include "reference/bound/arithmetic.h"
#include "tested_engine.h"

namespace strobe::test {
namespace {

/// A case of which the forward alone is run.
class ForwardCase : public DeviceCase {
 public:
  using DeviceCase::DeviceCase;

  void poison() { DeviceCase::poison(tensors.forward_outputs()); }
  Bits bits() { return DeviceCase::bits(tensors.forward_outputs()); }
};

class GpuForward : public FamilyTest {
 protected:
  void expect_replays_with_new_lengths(std::int64_t head_dim, int rounds, int replays);
  void expect_nan_where_it_is_seen(AttentionCase attention, std::uint64_t round, Random& random);
};

INSTANTIATE_TEST_SUITE_P(, GpuForward, kFamilies, family_name);

TEST_P(GpuForward, GivesTheSameBitsEveryTime) {
  for (const std::int64_t head_dim : {64, 128, 256, 512}) {
    for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
      ForwardCase one(plain_case(1900, head_dim, causal), device());
      one.forward(stream());
      const auto first = one.bits();
      for (int round = 0; round < 100; ++round) {
        one.poison();
        one.forward(stream());
        ASSERT_TRUE(one.bits() == first) << "head_dim " << head_dim << ", round " << round;
      }
    }
  }
}

TEST_P(GpuForward, IsReplayedFromAGraph) {
  ForwardCase one(plain_case(1000, 128, CausalMask::bottom_right), device());
  one.forward(stream());
  const auto eager = one.bits();
  const CapturedGraph graph(device(), stream(), [&] { one.forward(stream()); });
  ASSERT_FALSE(HasFailure());
  for (int round = 0; round < 10; ++round) {
    one.poison();
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(graph.launch());
    EXPECT_TRUE(one.bits() == eager) << "round " << round;
  }
}

/// Used lengths on the device: a graph reads them in each replay, and splits the keys by them.
void GpuForward::expect_replays_with_new_lengths(std::int64_t head_dim, int rounds, int replays) {
  AttentionCase attention = plain_case(3, head_dim, CausalMask::bottom_right);
  attention.batch = 3;
  attention.heads_q = 8;
  attention.k.rows = 5000;
  attention.k.seqused = {5000, 5000, 5000};
  ForwardCase one(attention, device());
  one.forward(stream());
  const CapturedGraph graph(device(), stream(), [&] { one.forward(stream()); });
  ASSERT_FALSE(HasFailure());
  Random random(3);
  for (int round = 0; round < rounds; ++round) {
    for (int sequence = 0; sequence < 3; ++sequence) {
      const std::int64_t length = random.chance(0.2) ? random.integer(0, 4) : random.integer(0, 5000);
      one.tensors.seqused_k.set(sequence, static_cast<double>(length));
    }
    one.copies.upload(one.tensors.seqused_k);
    one.poison();
    ASSERT_TRUE(graph.launch());
    const auto first = one.bits();
    expect_forward_matches(one.tensors, attention, reference::arithmetic_of(tested_kernels(), attention.dtype));
    if (HasFailure()) return;
    one.poison();
    for (int i = 0; i < replays; ++i) ASSERT_TRUE(graph.launch());
    ASSERT_TRUE(one.bits() == first) << "round " << round;
  }
}

TEST_P(GpuForward, SplitsTheKeysOfTheLengthsThatItReads) { expect_replays_with_new_lengths(128, 40, 100); }

TEST_P(GpuForward, SplitsTheKeysOfWideHeadsByTheLengthsThatItReads) { expect_replays_with_new_lengths(512, 5, 2); }

/// Lengths that give each CTA a part of one tile, some whole tiles, or neither.
TEST_P(GpuForward, GivesCtasWholePartsOfTilesWhereThatIsEven) {
  Random random(4);
  for (const std::int64_t sequences : {3, 11, 16, 35, 70}) {
    AttentionCase attention = plain_case(2, 64, CausalMask::bottom_right);
    attention.batch = sequences;
    attention.heads_q = attention.heads_kv = 8;
    attention.k.rows = 1100;
    attention.k.seqused.assign(static_cast<std::size_t>(sequences), 1100);
    SCOPED_TRACE(describe(attention));
    ForwardCase one(attention, device());
    for (const std::int64_t shortest : {1100, 1000, 0}) {
      for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
        one.tensors.seqused_k.set(sequence, static_cast<double>(random.integer(shortest, 1100)));
      }
      one.copies.upload(one.tensors.seqused_k);
      one.poison();
      one.forward(stream());
      one.expect_forward_right();
    }
  }
}

/// Keys behind a causal mask that others of the tile see, in parts of a tile.
TEST_P(GpuForward, KeepsNaNOfHiddenKeysOutOfParts) {
  Random random(2);
  for (int round = 0; round < 30; ++round) {
    AttentionCase attention = plain_case(random.integer(2, 16), random.one_of<std::int64_t>({64, 128}),
                                         random.one_of({CausalMask::bottom_right, CausalMask::top_left}));
    attention.k.rows = random.integer(1100, 3000);
    attention.heads_q = 4;
    attention.seed = static_cast<std::uint64_t>(round);
    SCOPED_TRACE(describe(attention));
    ForwardCase one(attention, device());
    const std::int64_t key =
        random.chance(0.7) ? attention.k.rows - random.integer(1, 8) : random.integer(0, attention.k.rows - 1);
    one.tensors.v.set(key * attention.heads_kv * attention.head_dim, std::numeric_limits<double>::quiet_NaN());
    one.copies.upload(one.tensors.v);
    one.forward(stream());
    one.expect_forward_right();
  }
}

/// Seed and offset on the device: a graph reads them in each replay.
TEST_P(GpuForward, DrawsTheMaskOfTheStateThatItReads) {
  AttentionCase attention = plain_case(700, 128, CausalMask::bottom_right);
  attention.options.dropout = 0.3F;
  const auto bits_of = [&](const RandomState& random) {
    attention.random = random;
    ForwardCase one(attention, device());
    one.forward(stream());
    return one.bits();
  };
  const std::array<RandomState, 2> states{RandomState{.seed = 7, .offset = 9}, RandomState{.seed = 7, .offset = 10}};
  const std::array wanted{bits_of(states[0]), bits_of(states[1])};
  EXPECT_FALSE(wanted[0] == wanted[1]);

  Result<gpu::DeviceMemory> memory = gpu::DeviceMemory::allocate(device(), 2 * sizeof(std::uint64_t));
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  attention.random = {.on_device = reinterpret_cast<const std::uint64_t*>(memory->data())};
  ForwardCase one(attention, device());
  const CapturedGraph graph(device(), stream(), [&] { one.forward(stream()); });
  ASSERT_FALSE(HasFailure());
  for (std::size_t i = 0; i < 2; ++i) {
    const std::array<std::uint64_t, 2> state{states[i].seed, states[i].offset};
    ASSERT_TRUE(memory->upload(state.data()).ok());
    one.poison();
    ASSERT_TRUE(graph.launch());
    EXPECT_TRUE(one.bits() == wanted[i]) << "offset " << states[i].offset;
  }
}

TEST_P(GpuForward, RunsOnTwoStreamsAtOnce) {
  const Result<gpu::Stream> other = gpu::Stream::create(device());
  ASSERT_TRUE(other.ok()) << other.status().message();
  const std::array<const gpu::Stream*, 2> streams{&stream(), &*other};
  const std::array<std::unique_ptr<ForwardCase>, 2> cases{
      std::make_unique<ForwardCase>(plain_case(3000, 64, CausalMask::bottom_right), device()),
      std::make_unique<ForwardCase>(plain_case(3000, 128, CausalMask::bottom_right), device())};
  std::array<DeviceCase::Bits, 2> alone;
  for (std::size_t i = 0; i < 2; ++i) {
    cases[i]->forward(*streams[i]);
    alone[i] = cases[i]->bits();
    cases[i]->poison();
  }
  for (int round = 0; round < 100; ++round) {
    for (std::size_t i = 0; i < 2; ++i) cases[i]->forward(*streams[i]);
  }
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(cases[i]->bits() == alone[i]) << "stream " << i;
}

// docs/accuracy.md, "NaN and infinity": the reference knows what each of them leads to.
void GpuForward::expect_nan_where_it_is_seen(AttentionCase attention, std::uint64_t round, Random& random) {
  attention.k.rows = random.integer(1, 300);
  attention.seed = round;
  SCOPED_TRACE(describe(attention));
  ForwardCase one(attention, device());
  std::vector<GuardedTensor*> inputs{&one.tensors.q, &one.tensors.k, &one.tensors.v};
  if (attention.has_qv) inputs.push_back(&one.tensors.qv);
  GuardedTensor& input = *inputs[round % inputs.size()];
  const std::int64_t index = random.integer(0, input.size() - 1);
  input.set(index, std::numeric_limits<double>::quiet_NaN());
  SCOPED_TRACE("NaN at " + std::to_string(index) + " of input " + std::to_string(round % inputs.size()));
  one.copies.upload(input);
  one.forward(stream());
  one.expect_forward_right();
}

TEST_P(GpuForward, TakesNaNWhereItIsSeenAndOnlyThere) {
  Random random(1);
  for (std::uint64_t round = 0; round < 60; ++round) {
    const AttentionCase attention =
        plain_case(random.integer(1, 300), random.one_of<std::int64_t>({64, 128}),
                   random.one_of({CausalMask::none, CausalMask::bottom_right, CausalMask::top_left}));
    expect_nan_where_it_is_seen(attention, round, random);
  }
}

TEST_P(GpuForward, WideHeadsTakeNaNWhereItIsSeenAndOnlyThere) {
  Random random(1);
  for (std::uint64_t round = 0; round < 24; ++round) {
    AttentionCase attention =
        plain_case(random.integer(1, 200), 512, random.one_of({CausalMask::none, CausalMask::bottom_right}));
    expect_nan_where_it_is_seen(attention, round, random);
    attention.head_dim = 64;
    attention.heads_q = 4;
    attention.heads_kv = 1;
    attention.has_qv = true;
    expect_nan_where_it_is_seen(attention, round, random);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace strobe::test
