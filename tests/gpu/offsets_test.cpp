// SPDX-License-Identifier: Apache-2.0
// Calls on parts of sequences on a GPU: against the float64 reference, and parts that make a whole. The random
// configurations have more of both (random_test.cpp).
#include <array>
#include <cstdint>
#include <vector>

#include "attention/parts.h"
#include "attention/pieces.h"
#include "attention/random_case.h"
#include "device_cache.h"
#include "device_case.h"
#include "gpu_test.h"
#include "reference/bound/arithmetic.h"
#include "tested_engine.h"

namespace strobe::test {
namespace {

/// Four query heads on two key heads, in bfloat16.
AttentionCase part_case(std::int64_t head_dim, std::int64_t queries, std::int64_t keys) {
  AttentionCase attention = plain_case(0, head_dim, CausalMask::bottom_right);
  attention.heads_q = 4;
  attention.q.rows = queries;
  attention.k.rows = keys;
  return attention;
}

class GpuOffsets : public FamilyTest {
 protected:
  void expect_matches(const AttentionCase& attention) {
    SCOPED_TRACE(describe(attention));
    const TestedVariants variants(true);
    DeviceCase(attention, device()).expect_both_right(stream());
  }

  /// Offsets of queries and keys; the second sequence begins elsewhere.
  void expect_matches(AttentionCase attention, const std::vector<std::array<std::int32_t, 2>>& places) {
    for (const auto& [first_query, first_key] : places) {
      attention.q.offsets = {first_query, first_query + 13};
      attention.k.offsets = {first_key, first_key / 2};
      expect_matches(attention);
      if (HasFailure()) return;
    }
  }

  /// From host tensors to host tensors.
  template <class Arguments>
  void run(const Arguments& arguments, const AttentionOptions& options, DeviceCopies& copies,
           const std::vector<GuardedTensor*>& outputs) {
    const Result<Plan> plan = make_plan(arguments, options, tested_execution(stream().get()));
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const Status status = plan->run(arguments, tested_execution(stream().get()));
    ASSERT_TRUE(status.ok()) << status.message();
    copies.download(outputs);
  }

  PartRunner runner(DType dtype) {
    const reference::ArithmeticModel model = reference::arithmetic_of(tested_kernels(), dtype);
    return {.forward =
                [this](CaseTensors& of, const AttentionCase& part) {
                  DeviceCopies copies(device());
                  const auto place = [&](const GuardedTensor& tensor) { return copies.place(tensor); };
                  run(of.forward_arguments(place), part.options, copies, of.forward_outputs());
                },
            .backward =
                [this](CaseTensors& of, const AttentionCase& part) {
                  DeviceCopies copies(device());
                  const auto place = [&](const GuardedTensor& tensor) { return copies.place(tensor); };
                  run(of.backward_arguments(place), part.options, copies, of.backward_outputs());
                },
            .forward_model = model,
            .backward_model = model};
  }

  void expect_parts_make_the_whole(const AttentionCase& attention) {
    Random random(attention.seed);
    for (int times = 0; times < 3 && !HasFailure(); ++times) {
      const AttentionCase parts = as_parts(attention, random);
      test::expect_parts_make_the_whole(parts, random, runner(attention.dtype));
    }
  }
};

INSTANTIATE_TEST_SUITE_P(, GpuOffsets, kFamilies, family_name);

/// Keys before, around and behind the diagonal, and positions near the last.
const std::vector<std::array<std::int32_t, 2>> kPlaces = {{0, 0},   {500, 0},     {64, 201},
                                                          {0, 900}, {1 << 20, 5}, {1073740000, 1073739700}};

TEST_P(GpuOffsets, Causal) {
  for (const std::int64_t head_dim : {64, 128, 256}) expect_matches(part_case(head_dim, 333, 450), kPlaces);
}

TEST_P(GpuOffsets, Windows) {
  AttentionCase attention = part_case(128, 333, 450);
  for (const Window window : {Window{100, -1}, Window{70, 30}, Window{1 << 30, 3}}) {
    attention.options.window = window;
    attention.options.causal = window.right < 0 ? CausalMask::top_left : CausalMask::none;
    expect_matches(attention, kPlaces);
  }
}

TEST_P(GpuOffsets, Chunks) {
  AttentionCase attention = part_case(64, 333, 450);
  for (const std::int64_t chunk : {50, 256}) {
    attention.options.chunk = chunk;
    expect_matches(attention, kPlaces);
  }
}

TEST_P(GpuOffsets, AlibiWithoutAMask) {
  AttentionCase attention = part_case(128, 200, 330);
  attention.options.causal = CausalMask::none;
  attention.alibi = Alibi::per_head;
  expect_matches(attention, {{0, 0}, {500, 0}, {64, 201}, {0, 300}});
}

/// Dropout's numbers of patches that lie in a tile as they do in whole sequences, and of others.
TEST_P(GpuOffsets, Dropout) {
  AttentionCase attention = part_case(64, 200, 330);
  attention.options.dropout = 0.3F;
  attention.random = {.seed = 3, .offset = 5};
  attention.q.offsets = {160, 32};
  attention.k.offsets = {48, 0};
  expect_matches(attention);
  expect_matches(attention, {{7, 1}, {48, 47}, {161, 64}});
}

/// Few queries: keys are split, or a group of heads shares a tile.
TEST_P(GpuOffsets, FewQueries) {
  AttentionCase attention = part_case(128, 3, 5000);
  attention.heads_q = 16;
  expect_matches(attention, {{6000, 0}, {4000, 1000}, {100, 0}, {0, 1}});
  attention.q.rows = 1;
  expect_matches(attention, {{2500, 0}, {6000, 3000}});
}

TEST_P(GpuOffsets, Packed) {
  AttentionCase attention = part_case(128, 0, 0);
  attention.batch = 4;
  attention.q = {.rows = 700, .cu_seqlens = {0, 130, 130, 333, 600}, .offsets = {100, 3, 777, 40}};
  attention.k = {.rows = 800, .cu_seqlens = {0, 100, 300, 633, 700}, .offsets = {64, 0, 500, 300}};
  expect_matches(attention);
  attention.options.window = {90, -1};
  attention.options.deterministic = true;
  expect_matches(attention);
}

TEST_P(GpuOffsets, PartsMakeTheWhole) {
  AttentionCase attention = part_case(128, 400, 600);
  attention.seed = 1;
  expect_parts_make_the_whole(attention);
  attention.options.window = {120, 20};
  attention.options.causal = CausalMask::none;
  attention.has_sink = true;
  attention.options.softcap = 15.0F;
  attention.alibi = Alibi::per_batch_and_head;
  expect_parts_make_the_whole(attention);
}

TEST_P(GpuOffsets, PartsWithDropoutMakeTheWhole) {
  AttentionCase attention = part_case(64, 300, 400);
  attention.options.dropout = 0.5F;
  attention.random = {.seed = 9, .offset = 2};
  attention.seed = 2;
  expect_parts_make_the_whole(attention);
}

TEST_P(GpuOffsets, RowInvariantPartsHaveTheWholesBits) {
  for (const std::int64_t head_dim : {64, 128}) {
    AttentionCase attention = part_case(head_dim, 700, 2500);
    attention.options.row_invariant = true;
    const CaseTensors tensors(attention);
    const ForwardArguments whole = tensors.forward_arguments();
    const auto run_on_device = [&](const ForwardArguments& host) {
      DeviceCache call(host, device());
      call.run(attention.options, stream());
      return HasFailure() ? Status{StatusCode::device_error, call.explained()} : Status{};
    };
    ASSERT_TRUE(run_on_device(whole).ok());
    for (const reference::SequenceRows& sequence : reference::sequence_rows(whole.q, whole.k, whole.sequences)) {
      for (const auto& [begin, end] : {std::pair{0, 1}, {1, 130}, {299, 300}, {250, 700}}) {
        Piece piece{.sequence = sequence, .row_begin = begin, .row_end = end, .keys = sequence.seqlen_k};
        piece.heads = attention.heads_q;
        piece.at_offset = true;
        PieceCall(whole, piece, attention.options).expect_the_bits_of_the_whole(run_on_device);
        if (HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace strobe::test
