// SPDX-License-Identifier: Apache-2.0
// Which kernels there are: sizes that are compiled, and the design that takes them. Plain constexpr C++, for the host's
// plan.
#pragma once

#include "kernels/score/rule.h"

namespace strobe::sm90::backward {

inline constexpr int kCompiledHeadDims[] = {64, 128, 192, 256};

/// The smallest compiled size that holds `head_dim`, which is at most 256: TMA's bounds pad with zeros.
constexpr int compiled_head_dim(int head_dim) {
  for (const int size : kCompiledHeadDims) {
    if (head_dim <= size) return size;
  }
  return 0;
}

// Of wide heads: so that half of the columns are whole panels.
inline constexpr int kCompiledWideHeadDims[] = {256, 384, 512};

/// The smallest that holds `head_dim`, of wide heads; 0 where it is more.
constexpr int compiled_wide_head_dim(int head_dim) {
  for (const int size : kCompiledWideHeadDims) {
    if (head_dim <= size) return size;
  }
  return 0;
}

/// Keys of an item of the joint design.
inline constexpr int kJointKeys = 128;

/// What of a rule the backward's kernels are compiled for: the LSE has the sink in it already. dQ's kernel by roles
/// takes the same: it computes rows again that are not finite.
constexpr ScoreRule kernel_rule(ScoreRule rule) {
  rule.sink = false;
  rule.max_logits = false;
  return rule;
}

/// Whether P carries a sign on its way to dP: that of a dropped probability is negative. dS is computed times the
/// probability of being kept, as P (dP - keep D) or -P keep D; dK, dQ and dV are divided by that in the end. Where a
/// text's derivative comes with P, which has a sign of its own, both warpgroups by roles draw what is dropped.
constexpr bool marks_dropped(const ScoreRule& rule) { return rule.dropout && rule.normalized && !rule.text.slope; }

/// Whether the joint design takes these compiled sizes: a warpgroup's registers hold dK, dV and two blocks of scores,
/// and what else a rule needs must fit there, too, as it does with 64 columns and 64 queries a step. These are the
/// rules whose kernels ptxas compiles without spills; what the joint design does not take the design by roles does,
/// which takes everything. A step lies in one block of a block mask.
constexpr bool joint_takes(const ScoreRule& rule, int head_dim, int head_dim_v, int block_m) {
  if (rule.dropout && !marks_dropped(rule)) return false;  // it knows what is dropped by signs alone
  const bool needs_registers =
      rule.softcap || rule.bias || rule.dropout || !rule.normalized || (rule.scale_first && !rule.alibi);
  // A walk past hidden blocks takes some, too, and so does a text.
  const bool walks = rule.block_mask != 0;
  if (walks && (needs_registers || rule.text.score || rule.alibi || rule.block_mask % kJointKeys != 0)) return false;
  if (head_dim == 64 && head_dim_v == 64) return block_m == 64 || !(needs_registers || walks || has_text(rule));
  if (rule.text.slope || (rule.text.tile_values > 0 && !rule.mask_right)) return false;
  return !needs_registers && head_dim == 128 && head_dim_v <= 128;
}

}  // namespace strobe::sm90::backward
