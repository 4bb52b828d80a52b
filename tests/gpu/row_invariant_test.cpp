// SPDX-License-Identifier: Apache-2.0
// Row-invariant forwards on a GPU: a row has the same bits in a prompt at once, in a chunk of it or as a decode, alone
// or among other sequences, packed or not, in pages of any size, with its group of heads or without. Outputs are
// poisoned before each call. Lengths pass several borders of segments.
#include <algorithm>
#include <string>
#include <vector>

#include "attention/cache_copy.h"
#include "attention/case_tensors.h"
#include "attention/pieces.h"
#include "device_cache.h"
#include "device_case.h"
#include "gpu_test.h"
#include "reference/tensors.h"
#include "text_cases.h"

namespace strobe::test {
namespace {

class GpuRowInvariant : public GpuTest {
 protected:
  /// Runs a call of host tensors on the device; results are in host memory.
  Status run(const ForwardArguments& host, const AttentionOptions& options) {
    DeviceCache call(host, device());
    call.run(options, stream());
    return HasFailure() ? Status{StatusCode::device_error, call.explained()} : Status{};
  }

  /// The whole case, against float64 where `checked`.
  void run_whole(const ForwardArguments& whole, const AttentionOptions& options, bool checked) {
    DeviceCache call(whole, device());
    call.run(options, stream());
    if (checked && !HasFailure()) call.expect_matches(whole, options);
    EXPECT_NE(call.explained().find("row-invariant"), std::string::npos) << call.explained();
  }

  /// Rows [begin, end) of a sequence as a call of their own, and of keys those that a causal mask leaves.
  void expect_the_same_bits(const ForwardArguments& whole, const AttentionOptions& options,
                            const reference::SequenceRows& sequence, std::int64_t begin, std::int64_t end,
                            std::int64_t head = -1) {
    if (begin < 0 || end > sequence.seqlen_q || begin >= end) return;
    SCOPED_TRACE("rows " + std::to_string(begin) + " to " + std::to_string(end));
    const bool causal = options.causal == CausalMask::bottom_right;
    const std::int64_t hidden = causal ? sequence.seqlen_q - end : 0;
    if (hidden >= sequence.seqlen_k) return;  // none of them sees a key
    Piece piece{.sequence = sequence, .row_begin = begin, .row_end = end, .keys = sequence.seqlen_k - hidden};
    piece.head = std::max<std::int64_t>(head, 0);
    piece.heads = head < 0 ? reference::heads_of(whole.q) : 1;
    PieceCall(whole, piece, options).expect_the_bits_of_the_whole([&](const ForwardArguments& call) {
      return run(call, options);
    });
  }

  /// Chunks of a prompt, decodes of one and several rows, and single heads.
  void expect_invariance(const AttentionCase& attention, bool checked) {
    SCOPED_TRACE(describe(attention));
    const CaseTensors tensors(attention);
    const ForwardArguments whole = tensors.forward_arguments();
    run_whole(whole, attention.options, checked);
    for (const reference::SequenceRows& sequence : reference::sequence_rows(whole.q, whole.k, whole.sequences)) {
      const std::int64_t rows = sequence.seqlen_q;
      const auto expect = [&](std::int64_t begin, std::int64_t end, std::int64_t head = -1) {
        if (!HasFailure()) expect_the_same_bits(whole, attention.options, sequence, begin, end, head);
      };
      for (const std::int64_t row : {0, 1, 63, 64, 127, 128, 500, 1023, 1024, 1025, 1500, 2047, 2048}) {
        expect(row, row + 1);
        expect(row, row + 4);
        expect(row, row + 16);
      }
      expect(0, 37);
      expect(37, 1100);
      expect(1100, rows);
      expect(0, rows);
      expect(rows - 70, rows, attention.heads_q - 1);
      expect(rows - 1, rows, 0);
      if (HasFailure()) return;
    }
  }

  void expect_invariance_of_prompts(std::int64_t head_dim);
};

AttentionCase prompt(DType dtype, std::int64_t head_dim, std::int64_t length) {
  AttentionCase attention = plain_case(length, head_dim, CausalMask::bottom_right);
  attention.dtype = dtype;
  attention.heads_q = 4;
  attention.wants_lse = true;
  attention.options.row_invariant = true;
  attention.seed = static_cast<std::uint64_t>(length);
  return attention;
}

void GpuRowInvariant::expect_invariance_of_prompts(std::int64_t head_dim) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    expect_invariance(prompt(dtype, head_dim, 2100), dtype == DType::bfloat16);
    if (HasFailure()) return;
  }
}

// Chunks and decodes have the prompt's bits.
TEST_F(GpuRowInvariant, Prompts64) { expect_invariance_of_prompts(64); }
TEST_F(GpuRowInvariant, Prompts128) { expect_invariance_of_prompts(128); }
TEST_F(GpuRowInvariant, Prompts256) { expect_invariance_of_prompts(256); }

TEST_F(GpuRowInvariant, NarrowHeadsAndHeadsThatDiffer) {
  AttentionCase attention = prompt(DType::bfloat16, 96, 1300);
  attention.head_dim_v = 40;
  expect_invariance(attention, true);
  attention.head_dim = 192;
  attention.head_dim_v = 128;
  expect_invariance(attention, true);
}

TEST_F(GpuRowInvariant, WithoutAMask) {
  for (const std::int64_t head_dim : {64, 128}) {
    AttentionCase attention = prompt(DType::bfloat16, head_dim, 2100);
    attention.options.causal = CausalMask::none;
    expect_invariance(attention, true);
  }
}

TEST_F(GpuRowInvariant, WindowsAndChunks) {
  for (const std::int64_t head_dim : {64, 128}) {
    AttentionCase attention = prompt(DType::bfloat16, head_dim, 2100);
    for (const std::int64_t left : {100, 1300}) {
      attention.options.window = {left, 0};
      expect_invariance(attention, true);
    }
    attention.options.window = {};
    attention.options.chunk = 700;
    expect_invariance(attention, true);
  }
}

/// Tiles whose rows see nothing, and tiles in which only some do: their LSE is the sink, of which a tenth would show
/// another rounding.
TEST_F(GpuRowInvariant, RowsWithoutKeys) {
  AttentionCase attention = prompt(DType::bfloat16, 64, 1300);
  attention.batch = 1;
  attention.heads_q = 64;
  attention.k.rows = 500;
  attention.has_sink = true;
  expect_invariance(attention, true);
}

TEST_F(GpuRowInvariant, SoftcapAlibiAndSinks) {
  for (const std::int64_t head_dim : {64, 128}) {
    AttentionCase attention = prompt(DType::bfloat16, head_dim, 1300);
    attention.options.softcap = 5.0F;
    expect_invariance(attention, true);
    attention.has_sink = true;
    attention.alibi = Alibi::per_head;
    expect_invariance(attention, true);
    attention.options.softcap = 0.0F;
    attention.options.scale = -0.2F;
    expect_invariance(attention, true);
  }
}

/// Texts of distances from the diagonal, and of positions of keys: what a part of the call has, too.
TEST_F(GpuRowInvariant, Texts) {
  const std::vector<TextCase> texts{
      {"score * heat[0] + bias[k - q + q_len - k_len + 2150]", "", {reals("bias", {2200}), reals("heat", {1})}},
      {"20 * tanh(score / 20) + 0.03 * (k - q + q_len - k_len)", "(k - q + q_len - k_len) % 3 != -1 || k < 300", {}},
      {"", "document[k] == document[q + k_len - q_len] || k % 7 == 2", {integers("document", {2100}, 2)}}};
  for (const Family family : {Family::sm90, Family::sm80}) {
    tested_family() = family;
    for (const TextCase& text : texts) {
      for (const std::int64_t head_dim : {64, 128}) {
        AttentionCase attention = prompt(DType::bfloat16, head_dim, 2100);
        attention.text = text;
        expect_invariance(attention, true);
      }
    }
  }
  tested_family() = Family::sm90;
}

/// Segments are summed without maxima.
TEST_F(GpuRowInvariant, WithoutASoftmax) {
  for (const Family family : {Family::sm90, Family::sm80}) {
    tested_family() = family;
    AttentionCase attention = prompt(DType::bfloat16, 64, 2100);
    attention.options.normalize = Normalization::none;
    attention.wants_lse = attention.has_d_lse = false;
    attention.text = TextCase{"(score - 0.5) * sigmoid(score + 0.03 * (k - q + q_len - k_len))", "", {}};
    expect_invariance(attention, true);
    attention.text.reset();
    attention.head_dim = attention.head_dim_v = 128;
    expect_invariance(attention, true);
  }
  tested_family() = Family::sm90;
}

/// Lengths on either side of segments' borders; sequences whose neighbours have other lengths.
TEST_F(GpuRowInvariant, PackedSequences) {
  for (const std::int64_t head_dim : {64, 128}) {
    AttentionCase attention = prompt(DType::bfloat16, head_dim, 0);
    attention.q = {.rows = 4300, .cu_seqlens = {0, 1, 71, 1271, 3371, 4300}};
    attention.k = {.rows = 7000, .cu_seqlens = {0, 1025, 2048, 3300, 5700, 7000}};
    attention.batch = 5;
    expect_invariance(attention, true);
    attention.q = {.rows = 20, .cu_seqlens = {0, 1, 2, 3, 4, 20}};
    expect_invariance(attention, true);
  }
}

TEST_F(GpuRowInvariant, PagesOfEverySize) {
  for (const std::int64_t head_dim : {64, 128}) {
    for (const std::int64_t rows : {1, 16, 1400}) {
      AttentionCase attention = prompt(DType::bfloat16, head_dim, rows);
      attention.k.rows = 2100;
      const CaseTensors tensors(attention);
      const ForwardArguments whole = tensors.forward_arguments();
      run_whole(whole, attention.options, false);
      for (const std::int64_t page_size : {1, 16, 40, 64, 128}) {
        Random random(static_cast<std::uint64_t>(page_size));
        for (int copy = 0; copy < 2; ++copy) {  // half of them are behind padding
          SCOPED_TRACE(std::to_string(rows) + " rows, pages of " + std::to_string(page_size));
          const CacheCopy paged(whole, CacheKind::pages, random, page_size);
          const ForwardArguments call = paged.arguments();
          ASSERT_TRUE(run(call, attention.options).ok());
          EXPECT_TRUE(paged.has_the_same_bits()) << "head_dim " << head_dim;
        }
      }
    }
  }
}

/// A batch so large that keys are not split, one in which they are, and both in another order.
TEST_F(GpuRowInvariant, BatchesOfEverySize) {
  for (const std::int64_t batch : {1, 3, 40, 300}) {
    AttentionCase attention = prompt(DType::bfloat16, 128, 2);
    attention.batch = batch;
    attention.k.rows = 3000;
    attention.heads_q = 8;
    const CaseTensors tensors(attention);
    const ForwardArguments whole = tensors.forward_arguments();
    run_whole(whole, attention.options, false);
    for (const std::int64_t entry : {std::int64_t{0}, batch / 2, batch - 1}) {
      const reference::SequenceRows sequence{.sequence = entry, .seqlen_q = 2, .seqlen_k = 3000};
      expect_the_same_bits(whole, attention.options, sequence, 0, 2);
      expect_the_same_bits(whole, attention.options, sequence, 0, 1);
      if (HasFailure()) FAIL() << "batch " << batch;
    }
  }
}

}  // namespace
}  // namespace strobe::test
