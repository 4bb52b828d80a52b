// SPDX-License-Identifier: Apache-2.0
#include "sm90/forward_tiles.h"

#include <algorithm>
#include <span>

#include "gpu/plan/few_queries.h"
#include "sm90/eight_bit_tiles.h"
#include "sm90/forward_registers.h"
#include "sm90/row_invariant.h"
#include "sm90/stored_tiles.h"
#include "sm90/tile_candidates.h"
#include "sm90/tile_fit.h"
#include "sm90/wide_tiles.h"

namespace strobe::sm90 {
namespace {

using forward::Config;

// What was measured on an H200 names its row of docs/log/sm90-forward.json.

int widest(const Config& config) { return std::max(config.head_dim, config.head_dim_v); }

/// Two CTAs on a multiprocessor: one loads and stores while the other computes. log: two-ctas
constexpr Tiles kTwoCtas[] = {{1, 64, 4, 2, 2}, {1, 64, 3, 2, 2}, {1, 64, 2, 2, 2}, {1, 64, 2, 1, 2}};
constexpr Tiles kTwoCtasOf128Keys[] = {{1, 128, 4, 2, 2}, {1, 128, 3, 2, 2}, {1, 128, 2, 2, 2}, {1, 128, 2, 1, 2}};
// The table of sequences takes the place of a stage of Q.
constexpr Tiles kTwoCtasVarlen[] = {{1, 64, 4, 1, 2}, {1, 64, 3, 1, 2}, {1, 64, 2, 1, 2}};
constexpr Tiles kTwoCtasOf128KeysVarlen[] = {{1, 128, 4, 1, 2}, {1, 128, 3, 1, 2}, {1, 128, 2, 1, 2}};

/// Masked sequences of up to 128 rows. log: d64-two-ctas-128
constexpr Tiles kShortMasked[] = {{2, 64, 4, 2, 1, false}};

/// Reading keys and values is all the time there is: the more of them are on their way, the better.
constexpr auto kDecode = by_block_n({{1, 0, 4, 1}, {1, 0, 3, 1}, {1, 0, 2, 1}});

/// As many keys per step as registers and shared memory hold, a second stage of Q where it fits beside them.
constexpr auto kWide = by_block_n({{2, 0, 2, 2}, {2, 0, 2, 1}});

/// Heads up to 64 wide: exponentials take as long as the GEMMs, and four warps per scheduler keep both units busiest
/// until sequences are long and their blocks all visible. log: d64-four-warpgroups, d64-full-turns, d64-full-192x128
constexpr Tiles kNarrow[] = {{4, 64, 4, 2}};
constexpr Tiles kNarrowWithoutTurns[] = {{4, 64, 4, 2, 1, false}};
constexpr Tiles kNarrowLong[] = {{3, 128, 3, 2}};
constexpr Tiles kNarrowAlibiWindow[] = {{3, 80, 4, 2}};  // four warpgroups spill
constexpr auto kNarrowBias = by_block_n({{3, 0, 4, 2}});

/// Under a text or a block mask a softmax has more to do, and four warps per scheduler hide it best: of one CTA, or of
/// two that each go their own way through the blocks. log: text-four-warpgroups, block-mask-128-two-warpgroups
constexpr Tiles kNarrowText[] = {{4, 64, 4, 2, 1, false}, {4, 64, 3, 2, 1, false}, {4, 64, 3, 1, 1, false}};
constexpr Tiles kNarrowBlocks[] = {{2, 64, 3, 2, 2, false}, {2, 64, 3, 1, 2, false}, {2, 64, 2, 1, 2, false}};
// Finding rows takes registers of the warp that brings Q.
constexpr Tiles kNarrowBlocksVarlen[] = {{2, 64, 3, 1, 2, false}, {2, 64, 2, 1, 2, false}};

/// The third consumer warpgroup at head_dim 128 hides more latency and wastes more of a tile's rows. log:
/// d128-three-warpgroups
constexpr Tiles kThreeWarpgroups[] = {{3, 80, 2, 2}, {3, 80, 2, 1}};
constexpr Tiles kThreeWarpgroupsSoftcap[] = {{3, 64, 2, 2}, {3, 64, 2, 1}};  // 80 keys spill. log: softcap-full-tiles

/// With a ring of the bias in shared memory: as many keys per step as it leaves. log: bias-d64-tiles
constexpr Tiles kNarrowBiasRing[] = {{3, 112, 2, 1}};
constexpr Tiles kNarrowLongBiasRing[] = {{3, 128, 2, 1}};
constexpr Tiles kNarrowCrowdedBiasRing[] = {{3, 96, 2, 1}};  // with options that take registers
constexpr Tiles kThreeWarpgroupsBiasRing[] = {{3, 80, 2, 1}};
constexpr auto kWideBiasRing = by_block_n({{2, 0, 2, 1}});

/// Whether the third warpgroup pays: its masked blocks are more. Chunks take more registers than three leave. Causal
/// sequences whose lengths the device alone knows are not dealt evenly: smaller tiles leave shorter ends. And a page is
/// more boxes for 80 keys than for 128. log: d128-three-warpgroups
bool prefers_three_warpgroups(const AttentionProblem& problem, const ScoreRule& rule) {
  constexpr std::int64_t kLeastQueries = 1024;
  constexpr std::int64_t kLeastKeys = 2048;
  constexpr std::int64_t kLeastWindow = 8192;  // masked blocks at both ends
  if (problem.chunk > 0 || (rule.varlen && rule.mask_right) || problem.page_size != 0) return false;
  const bool window = rule.mask_left && rule.mask_right;
  return problem.seqlen_q >= kLeastQueries &&
         gpu::most_visible_keys(problem, rule) >= (window ? kLeastWindow : kLeastKeys);
}

/// Options that take registers, or keys in blocks of their own.
bool needs_own_tiles(const ScoreRule& rule) {
  return rule.bias || rule.dropout || rule.block_mask != 0 || has_text(rule);
}

/// Windows of two or three blocks of keys on a row of queries: tiles are over soon, as those of short sequences.
/// log: window-128-d128-two-ctas
bool has_narrow_window(const AttentionProblem& problem, const ScoreRule& rule) {
  constexpr std::int64_t kMostKeys = 128;
  return rule.mask_left && rule.mask_right && !rule.varlen && !rule.chunked &&
         gpu::most_visible_keys(problem, rule) <= kMostKeys;
}

/// Under a block mask each of two CTAs on a multiprocessor goes its own way through the blocks, and hides the latency
/// of the other's. Wider blocks of wider heads take more registers and shared memory than two leave.
/// log: block-mask-64-two-ctas
bool takes_two_ctas_for_blocks(const Config& call) {
  const ScoreRule& rule = call.rule;
  return rule.block_mask != 0 && !rule.bias && !rule.dropout &&
         widest(call) <= (rule.block_mask == kRowsPerWarpgroup ? 128 : 64);
}

std::span<const Tiles> two_ctas(const ScoreRule& rule, int block_n) {
  if (block_n == 64) return rule.varlen ? std::span<const Tiles>(kTwoCtasVarlen) : kTwoCtas;
  if (rule.varlen) return kTwoCtasOf128KeysVarlen;
  return kTwoCtasOf128Keys;
}

/// Beside packed sequences and texts of scores, two warpgroups have registers where tags spare them the walk.
/// log: key-tags-used-lengths
std::span<const Tiles> two_ctas_for_blocks(const Config& call) {
  const ScoreRule& rule = call.rule;
  const bool walks = !has_key_tags(with(call, kNarrowBlocks[0]));
  const bool narrow = rule.block_mask == 128 && (!walks || (!rule.varlen && !rule.text.score));
  if (!narrow) return two_ctas(rule, rule.block_mask);
  return rule.varlen ? std::span<const Tiles>(kNarrowBlocksVarlen) : kNarrowBlocks;
}

std::span<const Tiles> narrow_tiles(const AttentionProblem& problem, const ScoreRule& rule) {
  constexpr std::int64_t kLong = 8192;
  const bool plain = !is_masked(rule) && !rule.varlen && !rule.softcap && !rule.alibi && !rule.scale_first;
  if (rule.dropout || rule.block_mask != 0 || (has_text(rule) && rule.bias)) return kWide;
  if (has_text(rule)) return kNarrowText;
  if (rule.bias) return kNarrowBias;
  if (plain && problem.seqlen_q >= kLong && problem.seqlen_k >= kLong) return kNarrowLong;
  if (rule.alibi && rule.mask_left) return kNarrowAlibiWindow;
  return plain ? kNarrow : kNarrowWithoutTurns;
}

/// Sequences of one block of rows or two, with few keys: a CTA mostly waits for its loads and stores.
/// log: two-ctas, d64-two-ctas-128
std::span<const Tiles> short_tiles(const AttentionProblem& problem, const Config& call) {
  constexpr std::int64_t kFewKeys = 256;
  constexpr std::int64_t kShortRows = 128;
  const std::int64_t rows = packed_rows(problem, call);
  if (rows <= kRowsPerWarpgroup) {
    return problem.seqlen_k <= kFewKeys && widest(call) <= 128 ? two_ctas(call.rule, 64) : std::span<const Tiles>();
  }
  if (rows > kShortRows || problem.seqlen_k > kShortRows || widest(call) > 64) return {};
  return is_masked(call.rule) ? std::span<const Tiles>(kShortMasked) : two_ctas(call.rule, 128);
}

/// The candidates of 16-bit operands.
std::span<const Tiles> candidates(const AttentionProblem& problem, const Config& call) {
  const ScoreRule& rule = call.rule;
  const bool own = needs_own_tiles(rule);
  const bool copies = call.keys == forward::KeySource::page_rows;  // with registers that three warpgroups do not leave
  if (!own) {
    if (const auto tiles = short_tiles(problem, call); !tiles.empty()) return tiles;
  }
  if (packed_rows(problem, call) <= kRowsPerWarpgroup) return kDecode;
  if (takes_two_ctas_for_blocks(call)) return two_ctas_for_blocks(call);
  if (widest(call) <= 64 && !copies) return narrow_tiles(problem, rule);
  if (widest(call) > 128 || own) return kWide;
  if (has_narrow_window(problem, rule)) return two_ctas(rule, 64);
  if (!prefers_three_warpgroups(problem, rule) || rule.alibi || copies) return kWide;
  return rule.softcap && !is_masked(rule) ? kThreeWarpgroupsSoftcap : kThreeWarpgroups;
}

bool cuts_alike(const Config& a, const Config& b) {
  return block_m(a) == block_m(b) && a.block_n == b.block_n && a.ctas_per_sm == b.ctas_per_sm;
}

Config own_tiles(const Config& call, const AttentionProblem& problem) {
  if (has_wide_heads(problem)) return with_wide_tiles(call);
  if (call.rule.row_invariant) return with_row_invariant_tiles(call, problem);
  if (eight_bit(call)) return with_eight_bit_tiles(call, problem);
  if (converts(call)) return with_stored_tiles(call, problem);
  return first_that_fits(call, candidates(problem, call), fits);
}

}  // namespace

std::vector<Config> tile_choices(const Config& call, const AttentionProblem& problem) {
  std::vector<Config> choices = {own_tiles(call, problem)};
  const bool has_one = call.rule.row_invariant || eight_bit(call) || converts(call) || has_wide_heads(problem) ||
                       packed_rows(problem, call) <= kRowsPerWarpgroup || problem.seqlen_k == 0;
  if (has_one) return choices;
  for (const std::int64_t seqlen : {16384, 2048, 512, 128}) {
    AttentionProblem other = problem;
    other.seqlen_q = other.seqlen_k = seqlen;
    const Config tiles = own_tiles(call, other);
    const auto same = [&](const Config& known) { return cuts_alike(known, tiles); };
    if (std::ranges::none_of(choices, same)) choices.push_back(tiles);
  }
  return choices;
}

Config with_tiles(const Config& call, const AttentionProblem& problem, const gpu::Choice& choice) {
  if (!choice.has_tiles()) return own_tiles(call, problem);
  const std::vector<Config> choices = tile_choices(call, problem);
  const auto wanted = std::ranges::find_if(
      choices, [&](const Config& tiles) { return choice.wants(block_m(tiles), tiles.block_n, tiles.ctas_per_sm); });
  return wanted == choices.end() ? choices.front() : *wanted;
}

std::optional<Config> with_aligned_bias_tiles(const Config& call, const AttentionProblem& problem) {
  const ScoreRule& rule = call.rule;
  const bool crowded = rule.varlen || rule.chunked || rule.max_logits;
  const bool narrow = widest(call) <= 64;
  // Of 16 bits and with registers for it: a longer ring of the bias. log: bias-d64-tiles
  const bool long_ring = narrow && !rule.bias_float32 && !crowded && option_registers(rule) <= 8;
  Config ring = call;
  ring.bias_stages = long_ring ? 2 : 1;
  const bool three = widest(call) <= 128 && prefers_three_warpgroups(problem, rule) && !crowded;
  const std::span<const Tiles> tiles = long_ring           ? std::span<const Tiles>(kNarrowLongBiasRing)
                                       : narrow && crowded ? kNarrowCrowdedBiasRing
                                       : narrow            ? kNarrowBiasRing
                                       : three             ? std::span<const Tiles>(kThreeWarpgroupsBiasRing)
                                                           : kWideBiasRing;
  const Config config = first_that_fits(ring, tiles, fits);
  if (!fits_shared_memory(config)) return std::nullopt;
  return config;
}

}  // namespace strobe::sm90
