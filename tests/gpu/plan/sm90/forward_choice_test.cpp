// SPDX-License-Identifier: Apache-2.0
// Which variant typical calls take on an H200, by name: what differs from a Config's defaults. A choice that changes
// has a measurement in docs/log/sm90-forward.json.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "gpu/plan/plan_problem.h"
#include "sm90/forward_variant.h"

namespace strobe::sm90 {
namespace {

using test::config_of;
using test::kH200;
using test::problem_of;
using Problem = AttentionProblem;

struct Choice {
  std::int64_t seqlen, head_dim;
  std::function<void(Problem&)> change;
  std::string variant;
};

std::string variant_of(const Choice& choice) {
  Problem problem = problem_of(choice.seqlen, choice.head_dim, choice.head_dim);
  choice.change(problem);
  return gpu::short_text(config_of(problem));
}

void plain(Problem&) {}
void many(Problem& p) {
  p.batch = 32;
  p.total_q = p.total_k = p.batch * p.seqlen_k;
}
void causal(Problem& p) { p.causal = CausalMask::bottom_right; }
void many_causal(Problem& p) {
  many(p);
  causal(p);
}
void window(Problem& p) {
  causal(p);
  p.window.left = 1023;
}
void narrow_window(Problem& p) {
  causal(p);
  p.window.left = 127;
}
void packed(Problem& p) { p.packed_q = p.packed_k = true; }
void alibi(Problem& p) {
  causal(p);
  p.modifiers.has_alibi = true;
}
void softcap(Problem& p) { p.softcap = 50.0F; }
void bias(Problem& p) {
  p.modifiers.has_bias = true;
  p.modifiers.bias_dtype = p.dtype;
}
void dropout(Problem& p) { p.dropout = 0.1F; }
void blocks_of_64(Problem& p) { p.modifiers.block_size = 64; }
void blocks_of_128(Problem& p) { p.modifiers.block_size = 128; }
void chunks(Problem& p) {
  causal(p);
  p.chunk = 2048;
}
/// One query of each of two sequences, whose keys are in pages.
void decode(Problem& p) {
  p.heads_kv = 2;
  p.seqlen_q = 1;
  p.total_q = p.batch;
  p.has_seqused_k = true;
  p.page_size = 16;
}
void rows_of_pages(Problem& p) {
  decode(p);
  p.page_size = 20;
}
void tree(Problem& p) {
  decode(p);
  p.seqlen_q = 16;
  p.total_q = p.batch * p.seqlen_q;
  p.has_tree_mask = true;
}
void row_invariant(Problem& p) { p.row_invariant = true; }
void stored(Problem& p) { p.stored = {.dtype = DType::int8, .k_rows = 32, .v_rows = 32}; }
void decode_of_stored(Problem& p) {
  decode(p);
  stored(p);
}
void int8(Problem& p) {
  p.dtype = DType::int8;
  p.eight_bit = {.q_rows = 1, .k_rows = 32, .v_rows = 1, .output = DType::bfloat16, .v_rotated = true};
}
void e4m3(Problem& p) {
  p.dtype = DType::float8_e4m3;
  p.eight_bit = {.q_rows = 1, .k_rows = 128, .v_rows = 128, .output = DType::bfloat16};
}
void causal_e4m3(Problem& p) {
  e4m3(p);
  window(p);
}

TEST(Sm90ForwardChoice, IsTheMeasuredOne) {
  const Choice choices[] = {
      {64, 64, plain,
       "head_dim 64, head_dim_v 64, consumer_warpgroups 1, block_n 64, stages 4, q_stages 2, ctas_per_sm 2, "
       "output_stages 1, consumer_registers 232"},
      {64, 128, plain, "consumer_warpgroups 1, block_n 64, q_stages 2, ctas_per_sm 2, consumer_registers 232"},
      {128, 64, plain,
       "head_dim 64, head_dim_v 64, consumer_warpgroups 1, q_stages 2, ctas_per_sm 2, output_stages 1, "
       "consumer_registers 232"},
      {512, 64, plain,  // of so few tiles
       "head_dim 64, head_dim_v 64, consumer_warpgroups 1, q_stages 2, ctas_per_sm 2, output_stages 1, "
       "consumer_registers 232"},
      {512, 64, many,
       "head_dim 64, head_dim_v 64, consumer_warpgroups 4, block_n 64, stages 4, q_stages 2, no looks_ahead, "
       "output_stages 1, producer_registers 32, consumer_registers 112"},
      {4096, 64, plain,
       "head_dim 64, head_dim_v 64, consumer_warpgroups 4, block_n 64, stages 4, q_stages 2, no looks_ahead, "
       "output_stages 1, producer_registers 32, consumer_registers 112"},
      {16384, 64, plain,
       "head_dim 64, head_dim_v 64, consumer_warpgroups 3, stages 3, q_stages 2, output_stages 1, producer_registers "
       "32, consumer_registers 160"},
      {512, 128, plain, "q_stages 2"},
      {4096, 128, plain, "q_stages 2"},  // of so few tiles
      {4096, 128, many, "consumer_warpgroups 3, block_n 80, q_stages 2, producer_registers 32, consumer_registers 160"},
      {4096, 192, plain, "head_dim 192, head_dim_v 192, block_n 96"},
      {4096, 256, plain, "head_dim 256, head_dim_v 256, block_n 64"},
      {128, 64, causal,
       "mask_right, head_dim 64, head_dim_v 64, block_n 64, stages 4, q_stages 2, no ping_pong, output_stages 1"},
      {4096, 64, causal,
       "mask_right, head_dim 64, head_dim_v 64, consumer_warpgroups 4, block_n 64, stages 4, q_stages 2, no ping_pong, "
       "dealt, no looks_ahead, output_stages 1, producer_registers 32, consumer_registers 112"},
      {512, 128, causal, "mask_right, q_stages 2, dealt"},
      {4096, 128, many_causal,
       "mask_right, consumer_warpgroups 3, block_n 80, q_stages 2, dealt, producer_registers 32, consumer_registers "
       "160"},
      {4096, 256, causal, "mask_right, head_dim 256, head_dim_v 256, block_n 64, dealt"},
      {64, 64, packed,
       "varlen, head_dim 64, head_dim_v 64, consumer_warpgroups 1, block_n 64, stages 4, ctas_per_sm 2, sorted, "
       "output_stages 1, producer_registers 40, consumer_registers 216"},
      {4096, 64, packed,
       "varlen, head_dim 64, head_dim_v 64, consumer_warpgroups 4, block_n 64, stages 4, q_stages 2, no ping_pong, "
       "sorted, no looks_ahead, output_stages 1, producer_registers 32, consumer_registers 112"},
      {4096, 128, packed,
       "varlen, consumer_warpgroups 3, block_n 80, q_stages 2, sorted, producer_registers 32, consumer_registers 160"},
      {4096, 64, window,
       "mask_right, mask_left, head_dim 64, head_dim_v 64, consumer_warpgroups 4, block_n 64, stages 4, q_stages 2, no "
       "ping_pong, dealt, no looks_ahead, own_begins, output_stages 1, producer_registers 32, consumer_registers 112"},
      {4096, 128, window, "mask_right, mask_left, q_stages 2, dealt"},
      {16384, 128, window, "mask_right, mask_left, q_stages 2, dealt"},
      {4096, 64, narrow_window,
       "mask_right, mask_left, head_dim 64, head_dim_v 64, consumer_warpgroups 4, block_n 64, stages 4, q_stages 2, no "
       "ping_pong, dealt, no looks_ahead, own_begins, output_stages 1, producer_registers 32, consumer_registers 112"},
      {4096, 128, narrow_window,
       "mask_right, mask_left, consumer_warpgroups 1, block_n 64, q_stages 2, ctas_per_sm 2, consumer_registers 232"},
      {4096, 64, alibi,
       "mask_right, alibi, head_dim 64, head_dim_v 64, consumer_warpgroups 4, block_n 64, stages 4, q_stages 2, no "
       "ping_pong, dealt, no looks_ahead, relative_alibi, output_stages 1, producer_registers 32, consumer_registers "
       "112"},
      {4096, 128, alibi, "mask_right, alibi, q_stages 2, dealt, relative_alibi"},
      {4096, 64, softcap,
       "softcap, head_dim 64, head_dim_v 64, consumer_warpgroups 4, block_n 64, stages 4, q_stages 2, no ping_pong, no "
       "looks_ahead, caps_in_softmax, output_stages 1, producer_registers 32, consumer_registers 112"},
      {4096, 128, softcap,
       "softcap, consumer_warpgroups 3, block_n 64, q_stages 2, no looks_ahead, caps_in_softmax, producer_registers "
       "32, "
       "consumer_registers 160"},
      {4096, 64, bias,
       "bias, head_dim 64, head_dim_v 64, consumer_warpgroups 3, block_n 96, stages 4, q_stages 2, no looks_ahead, "
       "no late_values, output_stages 1, producer_registers 32, consumer_registers 160"},
      {4096, 128, bias, "bias, block_n 112, q_stages 2, no looks_ahead, no late_values"},
      {4096, 64, dropout,
       "dropout, head_dim 64, head_dim_v 64, q_stages 2, no looks_ahead, no late_values, output_stages 1"},
      {4096, 128, dropout, "dropout, q_stages 2, no looks_ahead, no late_values"},
      {4096, 64, blocks_of_64,
       "block_mask 64, head_dim 64, head_dim_v 64, consumer_warpgroups 1, block_n 64, stages 4, q_stages 2, "
       "ctas_per_sm 2, no looks_ahead, no late_values, output_stages 1, producer_registers 72, consumer_registers "
       "184"},
      {4096, 128, blocks_of_64,
       "block_mask 64, consumer_warpgroups 1, block_n 64, q_stages 2, ctas_per_sm 2, no looks_ahead, "
       "no late_values, producer_registers 72, consumer_registers 184"},
      {4096, 256, blocks_of_64,
       "block_mask 64, head_dim 256, head_dim_v 256, block_n 64, serial, producer_registers 72, consumer_registers "
       "216"},
      {4096, 64, blocks_of_128,
       "block_mask 128, head_dim 64, head_dim_v 64, block_n 64, stages 3, q_stages 2, serial, no ping_pong, "
       "ctas_per_sm "
       "2, output_stages 1, producer_registers 32, consumer_registers 104"},
      {4096, 128, blocks_of_128,
       "block_mask 128, q_stages 2, no looks_ahead, no late_values, producer_registers 72, consumer_registers 216"},
      {8192, 64, chunks,
       "mask_right, head_dim 64, head_dim_v 64, consumer_warpgroups 4, block_n 64, stages 4, q_stages 2, no ping_pong, "
       "dealt, whole_chunks, no looks_ahead, output_stages 1, producer_registers 32, consumer_registers 112"},
      {8192, 128, chunks, "mask_right, q_stages 2, dealt, whole_chunks"},
      {4096, 128, decode,
       "varlen, consumer_warpgroups 1, stages 3, packed_heads 4, split, page_boxes, no looks_ahead, pages_ahead, "
       "output_stages 1, producer_registers 40, consumer_registers 232"},
      {4096, 128, rows_of_pages,
       "varlen, consumer_warpgroups 1, stages 3, packed_heads 4, split, page_rows, no looks_ahead, pages_ahead, "
       "output_stages 1, producer_registers 72"},
      {4096, 128, tree,
       "varlen, tree_mask, consumer_warpgroups 1, block_n 112, stages 3, packed_heads 4, split, page_boxes, no "
       "looks_ahead, pages_ahead, output_stages 1, producer_registers 40, consumer_registers 232"},
      {1024, 64, row_invariant,
       "row_invariant, head_dim 64, head_dim_v 64, consumer_warpgroups 4, block_n 64, stages 4, q_stages 2, no "
       "ping_pong, no looks_ahead, output_stages 1, producer_registers 32, consumer_registers 112"},
      {4096, 64, row_invariant,
       "row_invariant, head_dim 64, head_dim_v 64, consumer_warpgroups 3, block_n 64, stages 4, q_stages 2, no "
       "ping_pong, segment_blocks 32, keeps_in_smem, no looks_ahead, output_stages 1, producer_registers 32, "
       "consumer_registers 160"},
      {4096, 128, row_invariant, "row_invariant, segment_blocks 16, keeps_in_smem"},
      {8192, 256, row_invariant, "row_invariant, head_dim 256, head_dim_v 256, block_n 64, serial, segment_blocks 64"},
      {4096, 64, stored,
       "head_dim 64, head_dim_v 64, block_n 64, int8, raw_stages 4, output_stages 1, producer_registers 88, "
       "consumer_registers 208"},
      {4096, 128, stored, "block_n 80, int8, raw_stages 4, producer_registers 88, consumer_registers 208"},
      {4096, 128, decode_of_stored,
       "varlen, consumer_warpgroups 1, producer_warpgroups 2, packed_heads 4, split, int8, raw_stages 4, page_boxes, "
       "no looks_ahead, output_stages 1, producer_registers 120"},
      {1024, 64, int8,
       "head_dim 64, head_dim_v 64, stages 4, q_stages 2, eight_bit, no ping_pong, int8, rotated_columns 64, "
       "exponentials_ahead 2, output_stages 1, producer_registers 40, consumer_registers 232"},
      {4096, 64, int8,
       "head_dim 64, head_dim_v 64, consumer_warpgroups 3, stages 4, q_stages 2, eight_bit_serial, no ping_pong, int8, "
       "rotated_columns 64, output_stages 1, producer_registers 32, consumer_registers 160"},
      {4096, 128, int8,
       "consumer_warpgroups 3, stages 4, q_stages 2, eight_bit_serial, no ping_pong, int8, rotated_columns 128, "
       "producer_registers 32, consumer_registers 160"},
      {4096, 256, int8,
       "head_dim 256, head_dim_v 256, q_stages 2, eight_bit_serial, no ping_pong, int8, rotated_columns 256, "
       "producer_registers 40, consumer_registers 232"},
      {4096, 64, e4m3,
       "head_dim 64, head_dim_v 64, consumer_warpgroups 4, block_n 96, stages 4, q_stages 2, eight_bit_serial, no "
       "ping_pong, e4m3, keys_per_value_scale 32, finds_work_again, output_stages 1, producer_registers 32, "
       "consumer_registers 112"},
      {4096, 128, e4m3,
       "consumer_warpgroups 3, stages 4, q_stages 2, eight_bit_serial, no ping_pong, e4m3, keys_per_value_scale 32, "
       "finds_work_again, producer_registers 32, consumer_registers 160"},
      {4096, 128, causal_e4m3,
       "mask_right, mask_left, stages 3, q_stages 2, eight_bit, dealt, e4m3, keys_per_value_scale 32, "
       "producer_registers 40, consumer_registers 232"},
  };
  for (const Choice& choice : choices) {
    EXPECT_EQ(variant_of(choice), choice.variant) << "seqlen " << choice.seqlen << ", head_dim " << choice.head_dim;
  }
}

TEST(Sm90ForwardChoice, OfAnAlignedBias) {
  const auto variant = [](std::int64_t head_dim, auto change) {
    Problem problem = problem_of(4096, head_dim, head_dim);
    bias(problem);
    change(problem);
    return gpu::short_text(*aligned_bias_config(problem, kH200, config_of(problem)));
  };
  EXPECT_EQ(variant(64, plain),
            "bias, head_dim 64, head_dim_v 64, consumer_warpgroups 3, bias_stages 2, no looks_ahead, output_stages 1, "
            "producer_registers 32, consumer_registers 160");
  EXPECT_EQ(variant(64, window),
            "mask_right, mask_left, bias, head_dim 64, head_dim_v 64, consumer_warpgroups 3, block_n 112, dealt, "
            "bias_stages 1, no looks_ahead, output_stages 1, producer_registers 32, consumer_registers 160");
  EXPECT_EQ(variant(64, packed),
            "varlen, bias, head_dim 64, head_dim_v 64, consumer_warpgroups 3, block_n 96, sorted, bias_stages 1, no "
            "looks_ahead, output_stages 1, producer_registers 32, consumer_registers 160");
  EXPECT_EQ(variant(128, plain),
            "bias, consumer_warpgroups 3, block_n 80, bias_stages 1, no looks_ahead, producer_registers 32, "
            "consumer_registers 160");
  EXPECT_EQ(variant(128, alibi),
            "mask_right, alibi, bias, consumer_warpgroups 3, block_n 80, dealt, bias_stages 1, no looks_ahead, "
            "relative_alibi, producer_registers 32, consumer_registers 160");
  EXPECT_EQ(variant(192, causal), "mask_right, bias, head_dim 192, head_dim_v 192, block_n 80, dealt, bias_stages 1");
}

}  // namespace
}  // namespace strobe::sm90
