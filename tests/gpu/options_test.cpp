// SPDX-License-Identifier: Apache-2.0
// Every option of a GPU engine once, both passes against the float64 reference, on a few shapes around the edges
// of tiles. The kernels are debug variants: a wait that never ends traps, and shared memory that nobody wrote is NaN.
// scripts/mutation/gpu_*mutations.py expect these tests to notice what it breaks.
#include <array>
#include <utility>
#include <vector>

#include "device_case.h"
#include "gpu_test.h"
#include "tested_engine.h"

namespace strobe::test {
namespace {

using Lengths = std::pair<std::int64_t, std::int64_t>;  // of queries and keys

class GpuOptions : public FamilyTest {
 protected:
  void expect_matches(const AttentionCase& attention) {
    SCOPED_TRACE(describe(attention));
    const TestedVariants variants(true);
    DeviceCase(attention, device()).expect_both_right(stream());
  }

  void expect_bias(std::int64_t head_dim);

  void expect_matches(AttentionCase attention, const std::vector<Lengths>& shapes) {
    for (const auto& [queries, keys] : shapes) {
      attention.q.rows = queries;
      attention.k.rows = keys;
      expect_matches(attention);
      if (HasFailure()) return;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(, GpuOptions, kFamilies, family_name);

/// Four query heads on two key heads.
AttentionCase grouped_case(DType dtype, std::int64_t head_dim, CausalMask causal) {
  AttentionCase attention = plain_case(0, head_dim, causal);
  attention.dtype = dtype;
  attention.heads_q = 4;
  return attention;
}

void GpuOptions::expect_bias(std::int64_t head_dim) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    AttentionCase attention = grouped_case(DType::bfloat16, head_dim, CausalMask::bottom_right);
    for (const Sharing sharing : {Sharing{true, true}, Sharing{false, true}, Sharing{false, false}}) {
      attention.bias = {.dtype = dtype, .sharing = sharing, .hidden = 0.1};
      expect_matches(attention, {{200, 333}, {500, 904}});
      attention.bias->aligned = false;
      expect_matches(attention, {{333, 201}});
      attention.bias->aligned = true;
      attention.q.seqused = {300, 77};
      for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
        attention.options.causal = causal;
        expect_matches(attention, {{500, 201}});
      }
      attention.q.seqused.clear();
    }
  }
}

TEST_P(GpuOptions, Full64) {
  expect_matches(grouped_case(DType::float16, 64, CausalMask::none), {{127, 500}, {500, 129}, {1, 1}});
}

TEST_P(GpuOptions, Causal128) {
  expect_matches(grouped_case(DType::bfloat16, 128, CausalMask::bottom_right),
                 {{200, 200}, {129, 700}, {333, 65}, {600, 600}});
}

TEST_P(GpuOptions, Causal256) {
  expect_matches(grouped_case(DType::bfloat16, 256, CausalMask::bottom_right), {{200, 200}, {130, 500}, {333, 65}});
}

TEST_P(GpuOptions, DeterministicTopLeft128) {
  AttentionCase attention = grouped_case(DType::float16, 128, CausalMask::top_left);
  attention.options.deterministic = true;
  expect_matches(attention, {{200, 200}, {129, 500}, {333, 65}});
}

TEST_P(GpuOptions, DeterministicCausal64) {
  AttentionCase attention = grouped_case(DType::bfloat16, 64, CausalMask::bottom_right);
  attention.options.deterministic = true;
  expect_matches(attention, {{600, 600}, {129, 700}, {333, 65}});
}

TEST_P(GpuOptions, DeterministicFull128) {
  AttentionCase attention = grouped_case(DType::bfloat16, 128, CausalMask::none);
  attention.options.deterministic = true;
  expect_matches(attention, {{300, 900}, {129, 65}});
}

TEST_P(GpuOptions, Window64) {
  AttentionCase attention = grouped_case(DType::bfloat16, 64, CausalMask::none);
  attention.options.window = {.left = 70, .right = 30};
  expect_matches(attention, {{400, 400}, {100, 600}});
}

TEST_P(GpuOptions, Chunk128) {
  for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
    AttentionCase attention = grouped_case(DType::bfloat16, 128, causal);
    attention.options.chunk = 90;
    expect_matches(attention, {{400, 400}, {100, 333}});
  }
}

// Chunks that begin where tiles and blocks of keys do, and some that do not.
TEST_P(GpuOptions, WholeChunks) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right, CausalMask::top_left}) {
      AttentionCase attention = grouped_case(DType::bfloat16, head_dim, causal);
      attention.options.chunk = 256;
      expect_matches(attention, {{700, 700}, {444, 700}, {700, 444}, {300, 301}});
    }
  }
}

TEST_P(GpuOptions, Softcap64) {
  AttentionCase attention = grouped_case(DType::float16, 64, CausalMask::bottom_right);
  attention.options.softcap = 2.0F;
  expect_matches(attention, {{200, 300}, {333, 65}});
  attention.options.softcap = 0.02F;  // exponentials beyond what is computed of two of them
  expect_matches(attention, {{200, 300}});
}

// Scores all near 0, relative to the cap, and some that are not.
TEST_P(GpuOptions, WideSoftcap) {
  for (const std::int64_t head_dim : {64, 128}) {
    for (const float softcap : {50.0F, 8.0F}) {
      AttentionCase attention = grouped_case(DType::bfloat16, head_dim, CausalMask::bottom_right);
      attention.options.softcap = softcap;
      expect_matches(attention, {{300, 900}, {700, 700}});
    }
  }
}

TEST_P(GpuOptions, Alibi128) {
  AttentionCase attention = grouped_case(DType::bfloat16, 128, CausalMask::bottom_right);
  attention.alibi = Alibi::per_batch_and_head;
  expect_matches(attention, {{200, 300}, {333, 65}});
}

// Of lengths that all agree, of packed sequences, and of used lengths with all that joins a score afterwards.
TEST_P(GpuOptions, LogLength) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    AttentionCase attention = grouped_case(DType::bfloat16, head_dim, CausalMask::bottom_right);
    attention.options.log_length = 50;
    attention.q = {.rows = 330, .cu_seqlens = {0, 200, 330}};
    attention.k = {.rows = 340, .cu_seqlens = {0, 300, 340}};
    expect_matches(attention);
  }
  AttentionCase attention = grouped_case(DType::bfloat16, 128, CausalMask::bottom_right);
  attention.options = {.softcap = 20.0F, .log_length = 50};
  attention.alibi = Alibi::per_batch_and_head;
  attention.has_sink = attention.wants_max_logits = true;
  expect_matches(attention, {{200, 300}});
  attention.k.seqused = {150, 40};
  expect_matches(attention, {{100, 200}, {26, 150}});
}

TEST_P(GpuOptions, NegativeScale64) {
  AttentionCase attention = grouped_case(DType::bfloat16, 64, CausalMask::none);
  attention.options.scale = -0.3F;
  expect_matches(attention, {{200, 300}});
}

TEST_P(GpuOptions, SinkAndLargestScores64) {
  AttentionCase attention = grouped_case(DType::bfloat16, 64, CausalMask::bottom_right);
  attention.has_sink = attention.wants_max_logits = true;
  expect_matches(attention, {{200, 300}, {333, 65}});
}

TEST_P(GpuOptions, Dropout) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
      AttentionCase attention = grouped_case(DType::bfloat16, head_dim, causal);
      attention.options.dropout = 0.2F;
      attention.random = {.seed = 5, .offset = std::uint64_t{3} << 40U};
      expect_matches(attention, {{200, 333}, {333, 200}});
      attention.options.deterministic = true;
      expect_matches(attention, {{333, 333}});
    }
  }
}

/// Of some sequences and heads of a larger call. Values grow, so that rows are repaired by their exact sums, too.
TEST_P(GpuOptions, DropoutOfAPart) {
  for (const Values values : {Values::normal, Values::outliers}) {
    for (const std::int64_t head_dim : {64, 128}) {
      AttentionCase attention = grouped_case(DType::bfloat16, head_dim, CausalMask::bottom_right);
      attention.values = values;
      attention.options.dropout = 0.2F;
      attention.random = {.seed = 5, .offset = 7, .first_batch = 2, .first_head = 3};
      attention.random.heads = attention.heads_q + 5;
      expect_matches(attention, {{200, 333}});
    }
  }
}

TEST_P(GpuOptions, DropoutWithAlibi) {
  for (const std::int64_t head_dim : {96, 128}) {
    AttentionCase attention = grouped_case(DType::bfloat16, head_dim, CausalMask::bottom_right);
    attention.options.dropout = 0.2F;
    attention.random = {.seed = 5, .offset = 7};
    attention.alibi = Alibi::per_batch_and_head;
    expect_matches(attention, {{200, 333}, {700, 700}});
  }
}

TEST_P(GpuOptions, NarrowWindows) {
  for (const std::int64_t head_dim : {64, 128}) {
    AttentionCase attention = grouped_case(DType::bfloat16, head_dim, CausalMask::bottom_right);
    attention.options.window.left = 100;
    expect_matches(attention, {{700, 700}, {300, 450}});
  }
}

TEST_P(GpuOptions, BlockMask) {
  for (const std::int64_t size : {64, 128}) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      AttentionCase attention = grouped_case(DType::bfloat16, head_dim, CausalMask::bottom_right);
      attention.blocks = {.size = size, .sharing = {.per_batch = true, .per_head = true}, .visible = 0.4};
      expect_matches(attention, {{700, 700}, {130, 500}, {500, 333}});
    }
  }
}

// Its gradient is summed over what it is shared by. TMA does not take what is not aligned.
// What the bias holds for keys that are not used must reach no gradient, although TMA copies it with the rest.
TEST_P(GpuOptions, SoftcapAndBiasOfUsedKeys) {
  for (const std::int64_t head_dim : {128, 192}) {
    AttentionCase attention = grouped_case(DType::float16, head_dim, CausalMask::none);
    attention.options.softcap = 20.0F;
    attention.bias = {.dtype = DType::float32, .sharing = {true, true}};
    attention.k.seqused = {150, 77};
    expect_matches(attention, {{100, 200}, {26, 150}});
  }
}

TEST_P(GpuOptions, Bias64) { expect_bias(64); }
TEST_P(GpuOptions, Bias128) { expect_bias(128); }
TEST_P(GpuOptions, Bias256) { expect_bias(256); }

// One key outweighs the others of its row: the maximum is raised late, and what was summed before must shrink.
TEST_P(GpuOptions, SharpScores128) {
  AttentionCase attention = grouped_case(DType::float16, 128, CausalMask::none);
  attention.values = Values::sharp;
  expect_matches(attention, {{200, 900}});
}

// Lengths that are no multiples of a tile, none, and rows behind the last sequence.
TEST_P(GpuOptions, Packed) {
  for (const std::int64_t head_dim : {64, 256}) {
    AttentionCase attention = grouped_case(DType::bfloat16, head_dim, CausalMask::bottom_right);
    attention.batch = 4;
    attention.q = {.rows = 700, .cu_seqlens = {0, 130, 130, 333, 600}};
    attention.k = {.rows = 800, .cu_seqlens = {0, 100, 300, 633, 700}, .seqused = {100, 150, 300, 0}};
    expect_matches(attention);
  }
}

}  // namespace
}  // namespace strobe::test
