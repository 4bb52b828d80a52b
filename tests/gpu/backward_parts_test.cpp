// SPDX-License-Identifier: Apache-2.0
// The sm90 backward where several items share a block of keys, each with a part of a group's query heads: against the
// float64 reference, with the same bits every time, and with NaN where a mask hides it.
#include <array>
#include <string>

#include "device_case.h"
#include "gpu_test.h"
#include "sm90/backward_parts.h"

namespace strobe::test {
namespace {

AttentionCase grouped_case(std::int64_t seqlen, std::int64_t head_dim, CausalMask causal, std::int64_t group) {
  AttentionCase attention = plain_case(seqlen, head_dim, causal);
  attention.heads_q = 2 * group;
  return attention;
}

/// Query heads of an item.
gpu::Override<sm90::PartHeads> items_of(std::int64_t heads) {
  return gpu::Override<sm90::PartHeads>([heads](sm90::PartHeads& choice) { choice = {heads}; });
}

class GpuBackwardParts : public GpuTest {
 protected:
  void expect_matches_reference(const AttentionCase& attention, std::int64_t heads) {
    SCOPED_TRACE(describe(attention) + ", " + std::to_string(heads) + " heads an item");
    const auto items = items_of(heads);
    DeviceCase one(attention, device());
    one.forward(stream());
    one.backward(stream());
    one.expect_backward_right();
  }
};

TEST_F(GpuBackwardParts, MatchTheReference) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
      for (const bool deterministic : {false, true}) {
        for (const auto& [group, heads] : {std::array{5, 2}, std::array{7, 4}, std::array{8, 1}, std::array{16, 6}}) {
          AttentionCase attention = grouped_case(150, head_dim, causal, group);
          attention.batch = group == 16 ? 1 : 2;
          attention.k.rows = 140;
          attention.options.deterministic = deterministic;
          expect_matches_reference(attention, heads);
        }
      }
    }
  }
}

TEST_F(GpuBackwardParts, TakePackedSequencesAndUsedLengths) {
  for (const std::int64_t head_dim : {64, 128, 192}) {
    AttentionCase packed = grouped_case(560, head_dim, CausalMask::bottom_right, 7);
    packed.batch = 4;
    packed.q = {.rows = 560, .cu_seqlens = {0, 90, 90, 520, 540}};
    packed.k = {.rows = 640, .cu_seqlens = {0, 129, 140, 560, 600}};
    AttentionCase used = grouped_case(300, head_dim, CausalMask::bottom_right, 5);
    used.q.seqused = {280, 0};
    used.k.seqused = {130, 300};
    for (const std::int64_t heads : {1, 3}) {
      expect_matches_reference(packed, heads);
      expect_matches_reference(used, heads);
    }
  }
}

TEST_F(GpuBackwardParts, TakeEveryOption) {
  const auto with = [&](std::int64_t head_dim, auto change) {
    AttentionCase attention = grouped_case(200, head_dim, CausalMask::bottom_right, 6);
    change(attention);
    expect_matches_reference(attention, 4);
  };
  with(128, [](AttentionCase& a) { a.dtype = DType::float16; });
  with(128, [](AttentionCase& a) { a.options.window.left = 70; });
  with(64, [](AttentionCase& a) { a.alibi = Alibi::per_head; });
  with(128, [](AttentionCase& a) { a.options.softcap = 20.0F; });
  with(64, [](AttentionCase& a) { a.options.dropout = 0.2F; });
  with(128, [](AttentionCase& a) { a.has_sink = true; });
  for (const bool aligned : {false, true}) {
    with(64, [=](AttentionCase& a) { a.bias = BiasCase{.sharing = {.per_head = true}, .aligned = aligned}; });
  }
}

TEST_F(GpuBackwardParts, GiveTheSameBitsEveryTime) {
  for (const std::int64_t head_dim : {64, 128}) {
    const auto items = items_of(3);
    AttentionCase attention = grouped_case(1900, head_dim, CausalMask::bottom_right, 7);
    attention.options.deterministic = true;
    DeviceCase(attention, device()).expect_same_backward(stream(), 50);
  }
}

TEST_F(GpuBackwardParts, TakeAPoisonedWorkspaceAndNoMore) {
  for (const std::int64_t head_dim : {64, 128, 192}) {
    const auto items = items_of(2);
    const AttentionCase attention = grouped_case(300, head_dim, CausalMask::bottom_right, 5);
    DeviceCase(attention, device()).expect_backward_takes_poisoned_workspace(stream());
  }
}

TEST_F(GpuBackwardParts, TakeNaNWhereItIsSeenAndOnlyThere) {
  Random random(1);
  for (int round = 0; round < 32; ++round) {
    AttentionCase attention = grouped_case(random.integer(1, 200), random.one_of<std::int64_t>({64, 128, 256}),
                                           random.one_of({CausalMask::none, CausalMask::bottom_right}), 5);
    attention.k.rows = random.integer(1, 200);
    attention.seed = static_cast<std::uint64_t>(round);
    SCOPED_TRACE(describe(attention));
    const auto items = items_of(random.integer(1, 4));
    DeviceCase one(attention, device());
    GuardedTensor& input = *std::array{&one.tensors.q, &one.tensors.k, &one.tensors.v, &one.tensors.d_o}[round % 4];
    input.set(random.integer(0, input.size() - 1), kNaN);
    one.copies.upload(input);
    one.forward(stream());
    one.backward(stream());
    one.expect_backward_right();
  }
}

}  // namespace
}  // namespace strobe::test
