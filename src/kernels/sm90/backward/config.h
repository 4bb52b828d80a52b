// SPDX-License-Identifier: Apache-2.0
// One variant of the backward kernel is one value of Config, its only template argument. Plain constexpr C++:
// the host's compiler reads it for the launch and NVRTC for the kernel.
#pragma once

#include "kernels/score/rule.h"
#include "kernels/sm90/tile/warpgroup.h"

namespace strobe::sm90::backward {

struct Config {
  ScoreRule rule;
  int head_dim = 128;    // of Q and K as compiled; narrower heads are padded by TMA's bounds
  int head_dim_v = 128;  // of V, O and dO, likewise
  int block_m = 64;      // queries per step
  int q_stages = 3;      // of Q and the LSE of its rows
  int do_stages = 3;     // of dO and the D of its rows

  // Of two warpgroups, one computes P and dV and the other dS and dK of the same 64 keys: for heads whose dK and dV do
  // not fit one warpgroup's registers. dS goes to global memory, and another kernel multiplies it with K.
  // Else each of two warpgroups computes dK and dV of 64 keys, and a third one dQ.
  bool by_roles = false;
  // By roles, for heads of more columns than one warpgroup's registers hold sums of: each role is a CTA of a pair, in
  // which one warpgroup computes scores and two hold the sums (wide/kernel.h). q_stages and do_stages then count panels
  // and pieces of what is streamed, ds_stages blocks of P or dS within a CTA, p_stages those between the two.
  bool wide = false;
  // Wide: columns of K or V that the scores' warpgroup keeps in registers.
  int register_columns = 0;
  // That parts of dQ leave through shared memory and bulk reductions, not from registers.
  bool staged_dq = true;
  // That the sums of dQ are added to in order, so that the bits are the same every time; staged. By roles they always
  // are.
  bool ordered = false;
  // In order, under a mask on the right: every second section of items begins with its shortest (work.h).
  bool alternates = false;
  // By roles: of the probabilities that one warpgroup hands to the other, and of dS on its way out.
  int p_stages = 2;
  int ds_stages = 2;
  // Grouped heads: that several items share a block of keys, each with a part of the query heads that read it. Their
  // sums of dK and dV go to global memory in float32, and another kernel adds them up (key_sums.h).
  bool shares_keys = false;
  // Bias rules: stages of the ring by which TMA brings the bias; 0: who computes P fetches it from global memory.
  int bias_stages = 0;
  // The bias's gradient: dP's product runs while S becomes P, which takes registers.
  bool dp_ahead = false;
  // The gradients of captures: of its kernel alone.
  bool captures = false;
  bool debug = false;  // waits trap instead of hanging, shared memory starts as NaN, every lane arrives for itself

  bool operator==(const Config&) const = default;
};

inline constexpr int kKeyWarpgroups = 2;
inline constexpr int kQueryGradientPartColumns = 64;

/// Keys of a CTA.
constexpr int block_n(const Config& c) { return kRowsPerWarpgroup * (c.by_roles ? 1 : kKeyWarpgroups); }

/// CTAs of an item.
constexpr int ctas_per_item(const Config& c) { return c.wide ? 2 : 1; }

/// One warpgroup produces.
constexpr int threads_per_block(const Config& c) {
  return kWarpgroupSize * (kKeyWarpgroups + (c.by_roles && !c.wide ? 1 : 2));
}

// By way of setmaxnreg; they add up to what the CTA is launched with.
struct RegisterBudget {
  int producer, keys, queries;
};
// Wide: of the warpgroups that compute scores and that hold sums.
struct WideRegisterBudget {
  int producer, scores, sums;
};
constexpr WideRegisterBudget wide_register_budget(const ScoreRule& rule) {
  if (rule.varlen) return {.producer = 48, .scores = 144, .sums = 160};
  return {.producer = 32, .scores = 160, .sums = 160};
}
constexpr RegisterBudget register_budget(const Config& c) {
  if (c.by_roles && (c.rule.block_mask != 0 || c.bias_stages > 0)) return {.producer = 40, .keys = 232, .queries = 0};
  if (c.by_roles) return {.producer = 24, .keys = 240, .queries = 0};
  if (c.head_dim > 64 && c.rule.block_mask != 0) return {.producer = 32, .keys = 208, .queries = 64};
  if (c.head_dim > 64) return {.producer = 24, .keys = 208, .queries = 72};
  if (c.block_m == kRowsPerWarpgroup) return {.producer = 40, .keys = 192, .queries = 88};
  // Found by compiling all rules, none of which spills: docs/log/sm90-backward.json, "What ptxas wants".
  if (c.rule.element == Element::fp16 && c.ordered && !c.rule.mask_right) {
    return {.producer = 24, .keys = 208, .queries = 72};
  }
  return c.rule.element == Element::fp16 ? RegisterBudget{.producer = 24, .keys = 200, .queries = 88}
                                         : RegisterBudget{.producer = 24, .keys = 192, .queries = 104};
}

// dQ of a step is computed in parts of 64 rows and 64 columns, for which the registers are enough: by rows where a step
// has more of them, else by columns.
constexpr int query_gradient_parts(const Config& c) {
  return c.block_m / kRowsPerWarpgroup * c.head_dim / kQueryGradientPartColumns;
}
inline constexpr int kOrderedParts = 2;  // where dQ's sums are added to in order
constexpr bool query_gradient_by_rows(const Config& c) { return c.block_m > kRowsPerWarpgroup; }
constexpr int query_gradient_columns(const Config& c) {
  return query_gradient_by_rows(c) ? c.head_dim : c.head_dim / query_gradient_parts(c);
}
constexpr int finish_threads(const Config& c) { return kWarpgroupSize * query_gradient_parts(c); }
inline constexpr int kFinishKeysThreads = 2 * kWarpgroupSize;  // a warpgroup each for dK and dV

/// Whether the tensor cores subtract D from dP, and LSE from S where nothing is done to S before, as products with one
/// more block of columns (kernels/math/hi_lo.h): no thread has to fetch them, which the WGMMAs' operands would delay.
/// By roles this is faster for LSE alone, and with 128 queries a step shared memory is full. Under dropout D is
/// subtracted from what is left of dP.
constexpr bool has_hi_lo_d(const Config& c) { return !c.by_roles && !c.rule.dropout && c.rule.normalized; }
constexpr bool has_hi_lo_lse(const Config& c) {
  return !c.rule.scale_first && !c.rule.softcap && !c.rule.bias && !takes_scores(c.rule) &&
         (!c.by_roles || c.block_m == kRowsPerWarpgroup);
}

// P is kept as float16 times 2^12 on its way to dP: in half the registers, or half the shared memory. So it loses as
// little of its precision at 10^-8 as at 1, and an LSE that is too small by 4 in powers of two does not overflow it. dV
// is divided by that in the end; the joint design's dK and dQ, too, but in float16, which dS might overflow.
inline constexpr float kProbabilityLog2 = 12.0F;
inline constexpr float kProbabilityScale = 1.0F / 4096.0F;

/// What the sums of dK and dQ are multiplied by at the end, beside the call's scale.
constexpr float score_gradient_factor(const Config& c) {
  return c.by_roles || c.rule.element == Element::fp16 ? 1.0F : kProbabilityScale;
}

}  // namespace strobe::sm90::backward
