// SPDX-License-Identifier: Apache-2.0
// With `row_invariant` a row has the same bits whatever else a call computes: in a batch or alone, packed or not, a
// prompt at once or in chunks or a query a call, with its group of heads or without, in pages, behind padding, on any
// number of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cache_copy.h"
#include "matches_reference.h"
#include "pieces.h"
#include "random_case.h"
#include "reference/tensors.h"
#include "seeds.h"
#include "strobe/plan.h"

namespace strobe::test {
namespace {

void expect_the_bits_of_the_whole(const ForwardArguments& whole, const Piece& piece, const AttentionOptions& options,
                                  int threads) {
  const Execution execution{.threads = threads};
  PieceCall(whole, piece, options).expect_the_bits_of_the_whole([&](const ForwardArguments& call) {
    return forward(call, options, execution);
  });
}

/// Runs the case, some of its rows by themselves, and the whole on the same keys in pages or among other entries.
void expect_row_invariance(const AttentionCase& attention, int pieces) {
  SCOPED_TRACE(describe(attention));
  const CaseTensors tensors(attention);
  const ForwardArguments whole = tensors.forward_arguments();
  const Status status = forward(whole, attention.options, {.threads = 2});
  ASSERT_TRUE(status.ok()) << status.message();
  Random random(attention.seed);
  for (const CacheKind kind : {CacheKind::pages, CacheKind::entries}) {
    EXPECT_TRUE(CacheCopy(whole, kind, random).expect_the_same_results(attention.options, {.threads = 3}));
  }
  for (const reference::SequenceRows& sequence : reference::sequence_rows(whole.q, whole.k, whole.sequences)) {
    // Dropout draws by positions, which the parts of whole sequences do not say.
    const bool has_positions = attention.options.dropout == 0.0F || sequence.is_part;
    for (int count = 0; count < pieces && has_positions && sequence.seqlen_q > 0; ++count) {
      const Piece piece = random_piece(attention, sequence, random);
      SCOPED_TRACE("sequence " + std::to_string(sequence.sequence) + ", rows " + std::to_string(piece.row_begin) +
                   " to " + std::to_string(piece.row_end) + ", head " + std::to_string(piece.head));
      expect_the_bits_of_the_whole(whole, piece, attention.options, 1 + count % 3);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(RowInvariant, RandomCases) {
  for (const std::uint64_t seed : chosen_seeds(400)) {
    AttentionCase attention = as_row_invariant(random_case(seed, {.longest = 700}));
    if (seed % 4 != 0) attention.options.dropout = 0.0F;
    if (seed % 3 == 0) attention.options.causal = CausalMask::bottom_right;
    expect_row_invariance(attention, 4);
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

AttentionCase prompt(DType dtype, std::int64_t heads_q, std::int64_t rows, std::int64_t keys) {
  AttentionCase attention{.dtype = dtype, .heads_q = heads_q, .heads_kv = 2, .head_dim = 64, .head_dim_v = 80};
  attention.q.rows = rows;
  attention.k.rows = keys;
  attention.options = {.causal = CausalMask::bottom_right, .row_invariant = true};
  attention.seed = static_cast<std::uint64_t>(rows + keys);
  return attention;
}

// Every query of a prompt in a call of its own, as in decoding.
TEST(RowInvariant, DecodingHasThePromptsBits) {
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    for (const std::int64_t heads : {2, 14}) {
      const AttentionCase attention = prompt(dtype, heads, 300, 300);
      const CaseTensors tensors(attention);
      const ForwardArguments whole = tensors.forward_arguments();
      ASSERT_TRUE(forward(whole, attention.options).ok());
      for (std::int64_t row = 0; row < 300; ++row) {
        const Piece piece{.sequence = {.seqlen_q = 300, .seqlen_k = 300},
                          .row_begin = row,
                          .row_end = row + 1,
                          .keys = row + 1,
                          .heads = heads};
        expect_the_bits_of_the_whole(whole, piece, attention.options, 1);
        if (HasFatalFailure()) FAIL() << "row " << row;
      }
    }
  }
}

// What some rows see and others do not is infinite or NaN: such tiles take a path of their own.
TEST(RowInvariant, ValuesThatAreNotFinite) {
  for (const std::int64_t key : {5, 70, 200, 299}) {
    AttentionCase attention = prompt(DType::float32, 4, 300, 300);
    attention.options.window = {64, 0};
    CaseTensors tensors(attention);
    tensors.v.set(key * 2 * 80 + 3, kInfinity);
    const ForwardArguments whole = tensors.forward_arguments();
    ASSERT_TRUE(forward(whole, attention.options).ok());
    for (std::int64_t row = 0; row < 300; row += 7) {
      const Piece piece{.sequence = {.seqlen_q = 300, .seqlen_k = 300},
                        .row_begin = row,
                        .row_end = std::min<std::int64_t>(row + 7, 300),
                        .keys = std::min<std::int64_t>(row + 7, 300),
                        .heads = 4};
      expect_the_bits_of_the_whole(whole, piece, attention.options, 1);
      if (HasFatalFailure()) FAIL() << "rows from " << row;
    }
  }
}

// The sum of the first 64 keys underflows to -0 when key 70 outweighs them. In a prompt, tiles that a row does not see
// follow; alone, none do.
TEST(RowInvariant, SumsThatUnderflow) {
  constexpr std::int64_t kLength = 192;
  constexpr std::int64_t kHeavy = 70;
  const AttentionCase attention = prompt(DType::float32, 2, kLength, kLength);
  CaseTensors tensors(attention);
  for (std::int64_t index = 0; index < tensors.q.size(); ++index) {
    tensors.q.set(index, 1.0);
    tensors.k.set(index, index / (2 * 64) == kHeavy ? 1.0 : 0.0);
  }
  for (std::int64_t index = 0; index < tensors.v.size(); ++index) {
    tensors.v.set(index, index / (2 * 80) == kHeavy ? 0.0 : -0x1p-149);
  }
  const ForwardArguments whole = tensors.forward_arguments();
  ASSERT_TRUE(forward(whole, attention.options).ok());
  for (std::int64_t row = 0; row < kLength; ++row) {
    const Piece piece{.sequence = {.seqlen_q = kLength, .seqlen_k = kLength},
                      .row_begin = row,
                      .row_end = row + 1,
                      .keys = row + 1,
                      .heads = 2};
    expect_the_bits_of_the_whole(whole, piece, attention.options, 1);
    if (HasFatalFailure()) FAIL() << "row " << row;
  }
}

TEST(RowInvariant, IsInThePlan) {
  const AttentionCase attention = prompt(DType::bfloat16, 2, 1, 300);
  const CaseTensors tensors(attention);
  const Result<Plan> plan = make_plan(tensors.forward_arguments(), attention.options);
  ASSERT_TRUE(plan.ok());
  EXPECT_NE(plan->explain().find("row-invariant"), std::string::npos);
  EXPECT_NE(plan->explain().find("few queries"), std::string::npos);
}

}  // namespace
}  // namespace strobe::test
