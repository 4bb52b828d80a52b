// SPDX-License-Identifier: Apache-2.0
#include "sm80/forward_tiles.h"

#include <algorithm>
#include <span>

#include "call/checked.h"
#include "gpu/plan/few_queries.h"
#include "gpu/plan/row_invariant.h"
#include "gpu/plan/supported.h"
#include "kernels/score/modifiers/dropout.h"
#include "kernels/sm80/forward/smem.h"
#include "sm80/sliced_tiles.h"
#include "sm80/supported.h"

namespace strobe::sm80 {
namespace {

/// Fields that follow from the tiles.
forward::Config completed(const forward::Config& tiles) {
  forward::Config config = tiles;
  config.chunks_at_once = converts(tiles) && tiles.key_groups > 1 ? 4 : 2;  // as registers allow
  // Of few queries reading is all the time there is.
  config.copies_first = tiles.key_groups > 1;
  config.pages_ahead = tiles.pages && !sliced(tiles) && tiles.stages > 1 && threads_per_group(tiles) == kWarpSize &&
                       tiles.block_n <= kWarpSize;
  // Masked steps need much of a tile, so that finding it anew takes more registers than there are.
  config.keeps_work = splits(tiles) || folds(tiles) || is_masked(tiles.rule);
  return config;
}

forward::Config with(forward::Config config, const Tiles& tiles) {
  config.warps = tiles.warps;
  config.rows_per_warp = tiles.rows_per_warp;
  config.block_n = tiles.block_n;
  config.stages = tiles.stages;
  config.ctas_per_sm = tiles.ctas_per_sm;
  // Steps of float32 are a loop, which cannot number registers.
  config.q_in_registers = tiles.q_in_registers && config.rule.element != Element::fp32;
  config.key_groups = tiles.key_groups;
  config.column_warps = tiles.column_warps;
  config.slice_columns = tiles.slice_columns;
  return completed(config);
}

/// Registers of a thread that hold scores, output, Q and a fetched bias, and what options keep of its rows.
int tile_registers(const forward::Config& config) {
  const ScoreRule& rule = config.rule;
  const int scores = warp_keys(config) / 2;
  const int bias = !rule.bias ? 0 : rule.bias_float32 ? scores : scores / 2;
  const int options =
      2 * (int{rule.alibi} + int{rule.max_logits} + int{rule.softcap} + int{rule.mask_left} + int{rule.varlen} +
           3 * int{rule.tree_mask} + 5 * int{rule.chunked} + 4 * int{rule.block_mask != 0} + 4 * int{rule.bias});
  const int queries = config.q_in_registers ? halves(config, config.head_dim) / 4 : 0;
  return fragments(config) * (scores + config.head_dim_v / 2 / config.column_warps + bias + options + queries) +
         (rule.dropout ? (rule.offsets ? 64 : 40) : 0);
}

bool fits(const forward::Config& config, const DeviceShape& shape) {
  const ScoreRule& rule = config.rule;
  if (rule.query_values && config.slice_columns != kJoinedColumns) return false;
  const bool later = shape.compute_major >= 10;
  // 48 keys are more than 32 where 64 do not fit; on later architectures ptxas spills what they need.
  if (config.block_n == 48 && (shape.compute_major != 8 || rule.max_logits)) return false;
  const bool whole = (!rule.dropout || warp_keys(config) % kDropoutColumns == 0) &&
                     rule.block_mask % config.block_n == 0 && (!sliced(config) || slices_agree(config));
  const int registers = std::min(255, 65536 / (config.ctas_per_sm * threads_per_block(config)));
  // Operands, addresses, running maxima and sums; found by compiling.
  const int conversion =
      !is_stored(config) ? 0
      : config.stored_operands
          ? (fragments(config) == 2 ? 30 : 8) + (config.row_scales ? 24 : 0) + (rule.softcap ? 12 : 0)
          : 34 + (config.key_groups > 1 ? 12 : 0) + (rule.softcap ? 36 : 0) + (rule.softcap && later ? 28 : 0);
  const int joining = (!folds(config) ? 0 : rule.softcap ? 48 : 32) + (rule.row_invariant && later ? 48 : 0);
  const int parts = !splits(config) ? 0 : 12 + (rule.softcap ? 12 : 0) + (later ? 12 : 0);
  const int text = !has_text(rule) ? 0 : rule.text.score && config.q_in_registers ? 34 : 24;
  const bool many_slices = sliced(config) && config.slice_columns <= 64 && fragments(config) * warp_keys(config) >= 64;
  const int slices = many_slices ? 26 + 4 * int{rule.max_logits} : 0;
  const int scaling = rule.scale_first && later ? 4 : 0;
  const int split = rule.element != Element::fp32 ? 0
                    : fragments(config) == 1      ? 64
                                                  : 96 + (is_masked(rule) ? 8 : 0) + (later ? 64 : 0);
  const int others = 62 + split +
                     (!config.pages                                      ? 0
                      : config.stored_operands && fragments(config) == 2 ? 0
                      : config.stored_operands                           ? 12
                                                                         : 24) +
                     parts + conversion + joining + scaling + text + slices;
  return whole && tile_registers(config) + others <= registers &&
         smem_plan(config).total_bytes <= shared_bytes_of(shape, config.ctas_per_sm);
}

/// Tiles by head_dim, fastest first on an H200; what devices with less shared memory take follows FlashAttention-2's
/// choices.
// log: sm80-d64-q-in-registers
constexpr Tiles kNarrow[] = {{4, 32, 64, 2, 2, true}, {4, 32, 64, 2, 2}, {4, 32, 64, 1, 2, true}, {4, 32, 64, 1, 2},
                             {4, 32, 32, 1, 2},       {4, 16, 64, 1, 2}, {4, 16, 32, 1, 2}};
// log: sm80-d128-two-ctas, sm80-d128-163kb
constexpr Tiles kMiddle[] = {{4, 32, 64, 2, 2}, {4, 32, 48, 2, 2}, {4, 32, 32, 2, 2}, {4, 32, 32, 1, 2},
                             {8, 16, 64, 2, 1}, {8, 16, 64, 1, 1}, {8, 16, 32, 1, 1}};
// log: sm80-d256-two-stages
constexpr Tiles kWide[] = {
    {4, 16, 64, 1, 2}, {8, 16, 64, 2, 1}, {8, 16, 64, 1, 1}, {8, 16, 32, 1, 1}, {4, 16, 32, 1, 1}};

/// The same of float32.
// log: sm80-float32-tiles
constexpr Tiles kNarrowFloats[] = {
    {4, 32, 32, 2, 2}, {4, 16, 64, 2, 2}, {4, 16, 32, 2, 2}, {4, 16, 32, 1, 2}, {4, 16, 32, 1, 1}};
constexpr Tiles kMiddleFloats[] = {{8, 16, 64, 2, 1}, {4, 16, 32, 2, 2}, {8, 16, 32, 2, 1},
                                   {4, 16, 32, 1, 2}, {8, 16, 32, 1, 1}, {4, 16, 32, 1, 1}};
constexpr Tiles kWideFloats[] = {{8, 16, 32, 1, 1}, {4, 16, 32, 1, 1}, {2, 16, 32, 1, 1}};

std::span<const Tiles> float_tiles_of(int widest) {
  if (widest <= 64) return kNarrowFloats;
  if (widest <= 128) return kMiddleFloats;
  return kWideFloats;
}

std::span<const Tiles> tiles_of(int widest) {
  if (widest <= 64) return kNarrow;
  if (widest <= 128) return kMiddle;
  return kWide;
}

/// Of few rows: each group of warps takes keys of its own, and copies them for itself alone. Up to 16 rows, 32 and 64.
// log: sm80-decode-groups, sm80-decode-d64-one-cta, sm80-decode-two-stages
constexpr Tiles kSixteenRows[] = {
    {4, 16, 32, 3, 1, true, 4},  {4, 16, 32, 2, 2, true, 4},  {4, 16, 16, 3, 2, true, 4},
    {4, 16, 32, 2, 1, true, 4},  {4, 16, 16, 2, 2, true, 4},  {4, 16, 16, 3, 1, false, 4},
    {4, 16, 16, 2, 1, false, 4}, {2, 16, 16, 2, 1, false, 2}, {1, 16, 16, 1, 1, false, 1}};
constexpr Tiles kThirtyTwoRows[] = {
    {4, 32, 32, 3, 2, false, 4}, {4, 32, 32, 3, 1, false, 4}, {4, 32, 32, 2, 2, false, 4},
    {4, 32, 32, 2, 1, false, 4}, {4, 32, 16, 2, 1, false, 4}, {8, 16, 16, 2, 1, false, 4},
    {4, 16, 16, 2, 1, false, 2}, {4, 16, 16, 2, 1, false, 1}, {2, 16, 16, 1, 1, false, 1}};
// log: sm80-64-rows-two-groups
constexpr Tiles kSixtyFourRows[] = {
    {4, 32, 32, 2, 2, false, 2}, {8, 32, 32, 3, 1, false, 4}, {8, 32, 32, 2, 1, false, 4},
    {4, 32, 32, 2, 1, false, 2}, {8, 16, 32, 2, 1, false, 2}, {8, 16, 16, 3, 1, false, 2},
    {8, 16, 16, 2, 1, false, 2}, {4, 16, 16, 2, 1, false, 1}, {4, 16, 16, 1, 1, false, 1}};

/// The same of stored operands, with more groups, as blocks of half the bytes arrive twice as often.
constexpr Tiles kSixteenStoredRows[] = {{8, 16, 32, 6, 1, true, 8},  {8, 16, 32, 3, 1, true, 8},
                                        {8, 16, 32, 3, 1, false, 8}, {4, 16, 32, 3, 1, false, 4},
                                        {4, 16, 32, 2, 1, false, 4}, {4, 16, 16, 2, 1, false, 4}};
constexpr Tiles kThirtyTwoStoredRows[] = {
    {8, 32, 32, 6, 1, false, 8}, {8, 32, 32, 3, 1, false, 8}, {8, 32, 16, 6, 1, false, 8}, {4, 32, 32, 3, 1, false, 4},
    {4, 32, 16, 3, 1, false, 4}, {8, 16, 32, 3, 1, false, 4}, {8, 16, 32, 2, 1, false, 4}, {8, 16, 16, 2, 1, false, 4}};
constexpr Tiles kSixtyFourStoredRows[] = {{8, 32, 32, 6, 1, false, 4},
                                          {8, 32, 32, 4, 1, false, 4},
                                          {8, 32, 16, 6, 1, false, 4},
                                          {8, 16, 32, 3, 1, false, 2},
                                          {8, 16, 16, 2, 1, false, 2}};

/// Whether a tile is over when its keys and values are read.
bool takes_decode_tiles(const AttentionProblem& problem, const forward::Config& config) {
  const ScoreRule& rule = config.rule;
  return rows_of(problem, config) <= gpu::kFewRows && !rule.bias && !rule.dropout && rule.block_mask == 0;
}

std::span<const Tiles> tiles_of(const AttentionProblem& problem, const forward::Config& config) {
  if (gpu::has_wide_heads(problem)) {
    return sliced_tiles_of(takes_decode_tiles(problem, config) ? gpu::usual_rows(problem, config.packed_heads)
                                                               : rows_of(problem, config));
  }
  if (!takes_decode_tiles(problem, config)) {
    const int widest = std::max(config.head_dim, config.head_dim_v);
    return config.rule.element == Element::fp32 ? float_tiles_of(widest) : tiles_of(widest);
  }
  const std::int64_t rows = gpu::usual_rows(problem, config.packed_heads);
  if (config.stored_operands) {
    if (rows <= 16) return kSixteenStoredRows;
    return rows <= 32 ? std::span<const Tiles>(kThirtyTwoStoredRows) : kSixtyFourStoredRows;
  }
  if (rows <= 16) return kSixteenRows;
  if (rows <= 32) return kThirtyTwoRows;
  return kSixtyFourRows;
}

/// Of few rows stored elements are operands, where devices convert two at a time.
void choose_stored_operands(forward::Config& config, const AttentionProblem& problem, const DeviceShape& shape) {
  constexpr int kLeastMajor = 9;
  config.stored_operands = is_stored(config) && shape.compute_major >= kLeastMajor && !problem.row_invariant &&
                           config.rule.normalized && takes_decode_tiles(problem, config);
  config.row_scales =
      config.stored_operands && std::min(problem.stored.k_rows, problem.stored.v_rows) < problem.seqlen_k;
}

/// Row-invariant calls: one number of keys per step, whatever else their tiles are, and no groups of warps, which would
/// sum them in another order. By rows as above.
// log: sm80-row-invariant-calls-table
int keys_per_step(int widest) { return widest <= 64 ? 64 : 32; }

constexpr Tiles invariant(int warps, int rows_per_warp, int stages, int ctas_per_sm) {
  return {warps, rows_per_warp, 0, stages, ctas_per_sm};
}
constexpr Tiles kInvariantSixteen[] = {invariant(1, 16, 3, 4), invariant(1, 16, 2, 4), invariant(1, 16, 2, 3),
                                       invariant(1, 16, 2, 2), invariant(1, 16, 1, 2), invariant(1, 16, 1, 1)};
constexpr Tiles kInvariantThirtyTwo[] = {invariant(1, 32, 2, 3), invariant(1, 32, 2, 2), invariant(2, 16, 2, 2),
                                         invariant(2, 16, 1, 2), invariant(2, 16, 1, 1)};
constexpr Tiles kInvariantSixtyFour[] = {invariant(2, 32, 2, 2), invariant(4, 16, 2, 2), invariant(4, 16, 1, 2),
                                         invariant(4, 16, 1, 1), invariant(2, 16, 1, 1)};
constexpr Tiles kInvariantMany[] = {invariant(4, 32, 2, 2), invariant(4, 32, 1, 2), invariant(4, 16, 2, 2),
                                    invariant(8, 16, 2, 1), invariant(8, 16, 1, 1), invariant(4, 16, 1, 1),
                                    invariant(2, 16, 1, 1)};

std::span<const Tiles> invariant_tiles_of(std::int64_t rows) {
  if (rows <= 16) return kInvariantSixteen;
  if (rows <= 32) return kInvariantThirtyTwo;
  return rows <= gpu::kFewRows ? std::span<const Tiles>(kInvariantSixtyFour) : kInvariantMany;
}

/// The first that fits. The last one does always.
void choose_row_invariant_tiles(forward::Config& config, const AttentionProblem& problem, const DeviceShape& shape) {
  if (gpu::has_wide_heads(problem)) {  // one CTA has all keys of a tile
    for (const Tiles& tiles : invariant_sliced_tiles_of(rows_of(problem, config))) {
      config = with(config, tiles);
      if (fits(config, shape)) return;
    }
    return;
  }
  const int widest = std::max(config.head_dim, config.head_dim_v);
  const int keys = keys_per_step(widest);
  config.segment_blocks = gpu::segment_blocks(problem, widest, keys);
  for (Tiles tiles : invariant_tiles_of(rows_of(problem, config))) {
    tiles.block_n = keys;
    config = with(config, tiles);
    if (fits(config, shape)) return;
  }
}

}  // namespace

void choose_columns(forward::Config& config, const AttentionProblem& problem) {
  if (gpu::has_wide_heads(problem)) return choose_sliced_columns(config, problem);
  config.head_dim = compiled_head_dim(problem.head_dim);
  config.head_dim_v = compiled_head_dim(problem.head_dim_v);
}

std::int64_t rows_of(const AttentionProblem& problem, const forward::Config& config) {
  return (Checked(problem.seqlen_q) * config.packed_heads).value();
}

std::vector<forward::Config> tile_choices(const forward::Config& config, const AttentionProblem& problem,
                                          const DeviceShape& shape) {
  std::vector<forward::Config> choices;
  if (config.rule.row_invariant) return choices;
  for (const Tiles& tiles : tiles_of(problem, config)) {
    const forward::Config chosen = with(config, tiles);
    const auto same = [&](const forward::Config& known) {
      return block_m(known) == block_m(chosen) && known.block_n == chosen.block_n &&
             known.ctas_per_sm == chosen.ctas_per_sm;
    };
    if (fits(chosen, shape) && std::ranges::none_of(choices, same)) choices.push_back(chosen);
  }
  return choices;
}

void choose_tiles(forward::Config& config, const AttentionProblem& problem, const DeviceShape& shape,
                  const gpu::Choice& choice) {
  if (config.rule.row_invariant) return choose_row_invariant_tiles(config, problem, shape);
  choose_stored_operands(config, problem, shape);
  for (const forward::Config& tiles :
       choice.has_tiles() ? tile_choices(config, problem, shape) : std::vector<forward::Config>()) {
    if (!choice.wants(block_m(tiles), tiles.block_n, tiles.ctas_per_sm)) continue;
    config = tiles;
    return;
  }
  for (const Tiles& tiles : tiles_of(problem, config)) {
    if (converts(config)) {  // blocks of half the bytes: more of them are as many on their way
      Tiles deeper = tiles;
      ++deeper.stages;
      config = with(config, deeper);
      if (fits(config, shape)) return;
    }
    config = with(config, tiles);
    if (fits(config, shape)) return;
  }
}

}  // namespace strobe::sm80
