// SPDX-License-Identifier: Apache-2.0
// What explain() says of a forward.
#include <fmt/format.h>

#include "gpu/plan/row_invariant.h"
#include "kernels/sm90/forward/smem.h"
#include "sm90/forward_plan.h"
#include "sm90/pages.h"

namespace strobe::sm90 {
namespace {

std::string explain_loop(const forward::Config& c) {
  if (is_wide(c)) return "loop          a block's softmax under the P V before, in different warpgroups\n";
  const bool is_pipelined = c.loop == forward::Loop::pipelined || c.loop == forward::Loop::eight_bit;
  std::string text =
      is_pipelined ? "loop          a block's softmax under the P V before" : "loop          one step after another";
  if (c.loop == forward::Loop::pipelined && c.looks_ahead) text += "; the next tile is found ahead";
  if (!c.late_values) text += "; V is there before the products begin";
  if (c.exponentials_ahead > 0) {
    text +=
        fmt::format("; exponentials of {} keys begin before it is done", c.exponentials_ahead * forward::kOperandKeys);
  }
  if (!c.masks_by_words) text += "; masks compare each score's column";
  if (c.own_begins) text += "; each warpgroup stops at the first block that its own rows see";
  if (c.relative_alibi) text += "; ALiBi relative to each row's diagonal";
  if (c.caps_in_softmax) text += "; softcap and softmax in one where all keys are visible";
  if (c.finds_work_again) text += "; a tile's numbers are found again for each block";
  return text + "\n";
}

}  // namespace

std::string explain(const AttentionProblem& problem, const ForwardPlan& plan) {
  const forward::Config& c = plan.config;
  std::string text = fmt::format("tiles         {} query rows x {} keys, head_dim {} as {}, head_dim_v {} as {}\n",
                                 block_m(c), c.block_n, problem.head_dim, c.head_dim, problem.head_dim_v, c.head_dim_v);
  text += is_wide(c) ? fmt::format("warpgroups    1 producer, 1 for scores, {} for O, of {} columns each\n",
                                   c.output_warpgroups, output_columns(c))
                     : fmt::format("warpgroups    {} producer and {} consumers of 64 rows{}\n", c.producer_warpgroups,
                                   c.consumer_warpgroups, c.ping_pong ? ", taking turns on the tensor cores" : "");
  if (eight_bit(c)) {
    text += fmt::format("8-bit inputs  {}; P rounded to {}\n", strobe::name_of(problem.dtype),
                        problem.dtype == DType::int8
                            ? fmt::format("8 unsigned bits relative to its row's largest of every {} keys", c.block_n)
                            : "float8_e4m3");
  }
  if (converts(c)) {
    text += fmt::format("stored K, V   {}; converted to {} by {} warps, {} blocks of them on their way\n",
                        strobe::name_of(problem.stored.dtype), strobe::name_of(problem.dtype), converter_warps(c),
                        c.raw_stages);
  }
  if (plan.rows.given()) {
    text += fmt::format("rows          of {} bytes, converted to {} by four warps as they read them\n",
                        plan.rows.row_bytes, strobe::name_of(problem.dtype));
  } else if (in_pages(c)) {
    text += fmt::format(
        "pages         of {} rows, {}{}\n", problem.page_size,
        in_page_boxes(c) ? fmt::format("read by TMA, {} rows at a time", page_box_rows(problem, c)) : "read row by row",
        c.pages_ahead ? "; the table a block ahead" : "");
  }
  if (c.ctas_per_sm > 1) text += fmt::format("CTAs          {} on a multiprocessor at a time\n", c.ctas_per_sm);
  text += is_wide(c) ? fmt::format("pipeline      {} panels of K, {} of V; {} columns of Q in registers\n",
                                   c.key_panels, c.stages * panels(output_columns(c)), c.register_columns)
                     : fmt::format("pipeline      {} stages of K and V, {} of Q, {} of O\n", c.stages, c.q_stages,
                                   c.output_stages);
  text += explain_loop(c);
  text += fmt::format("registers     of a thread: {} of producers, {} of consumers{}\n", c.producer_registers,
                      c.consumer_registers, is_wide(c) ? fmt::format(", {} of O's", c.output_registers) : "");
  text += fmt::format("shared memory {} of {} bytes\n", smem_plan(c).total_bytes,
                      c.ctas_per_sm == 2 ? kMaxSmemBytesOfTwo : kMaxSmemBytes);
  if (c.packed_heads > 1) {
    text +=
        fmt::format("heads         {} query heads of a key head share a tile: there are few queries\n", c.packed_heads);
  }
  if (c.in_pairs) text += "pairs         two CTAs, a cluster, convert the keys of two tiles once\n";
  if (c.rule.tree_mask) text += "tree mask     a bit for each of a sequence's last keys, as many as its queries\n";
  const bool sorted = c.schedule == Schedule::sorted;
  text +=
      fmt::format("schedule      {}{} tiles on {} CTAs{}\n", sorted ? "at most " : "", plan.tiles.tiles, plan.workers,
                  c.schedule == Schedule::dealt   ? ", dealt out by length, the longest first"
                  : c.schedule == Schedule::taken ? ", each of which takes the next when it is done"
                  : sorted                        ? ", sequences sorted by length on the device, the longest first"
                                                  : "");
  if (c.schedule == Schedule::split) text += gpu::explain_split(problem, plan.tiles.tiles, plan.workers);
  if (c.rule.row_invariant) {
    text += gpu::explain_row_invariant(c.block_n, c.segment_blocks);
    if (c.keeps_in_smem) text += " in shared memory";
    text += '\n';
  }
  return text;
}

}  // namespace strobe::sm90
