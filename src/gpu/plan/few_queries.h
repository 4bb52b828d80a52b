// SPDX-License-Identifier: Apache-2.0
// Calls of few queries: query heads that share tiles, and keys that are shared out among CTAs. Pure functions of the
// problem, the kernel's tiles and the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "call/problem.h"
#include "kernels/auxiliary/combine_params.h"
#include "kernels/scheduler/split.h"
#include "kernels/score/rule.h"

namespace strobe::gpu {

inline constexpr std::int64_t kFewRows = 64;  // of a tile that takes less time to compute than to read

/// Keys that a query of the longest sequence sees at most.
std::int64_t most_visible_keys(const AttentionProblem& problem, const ScoreRule& rule);

/// How many query heads share a tile: as many as a power of two can, if that saves a tenth of the tiles.
int choose_packed_heads(const AttentionProblem& problem);

/// Rows of a sequence, packed heads counted in, that a tile should have: where packed sequences have few at most, as
/// many as they have on average. A captured step of a server may give all of its queries to one sequence, which then
/// has several tiles, and hardly ever does. log: sm80-usual-rows
std::int64_t usual_rows(const AttentionProblem& problem, int packed_heads);

/// Whether rounds of whole tiles, one to a CTA, leave few of `ctas` without one: parts would be written and read again.
bool occupy_most(std::int64_t tiles, std::int64_t ctas);

/// What of a kernel decides how its keys are split.
struct SplitKernel {
  ScoreRule rule;
  int block_m = 0;
  int block_n = 0;
  int head_dim_v = 0;         // as compiled
  std::int64_t rows = 0;      // of a sequence and head, packed heads counted in
  std::int64_t ctas = 0;      // that run at a time
  std::int64_t segments = 0;  // row-invariant calls: of a row's keys, at most; parts are segments. 0: the keys are one
};

/// CTAs that share the keys of `tiles` tiles, each of which sees up to `keys`; 0: a tile is one CTA's. `wanted`: as
/// Choice::split_ctas.
int split_workers(const AttentionProblem& problem, const SplitKernel& kernel, std::int64_t tiles, std::int64_t keys,
                  int wanted = 0);

/// What else split_ctas may be where the rule has `rule` CTAs: all, whole parts of tiles, and whole tiles, but not of
/// lengths that only the device knows, which may be as uneven as they like.
std::vector<int> other_splits(int rule, std::int64_t ctas, std::int64_t tiles, bool varlen);

/// The workspace of a split call and the kernel that puts its parts together.
struct SplitPlan {
  int slot_rows = 0;
  std::size_t tiles = 0;  // offsets, in bytes
  std::size_t statistics = 0;
  std::size_t sums = 0;
  std::size_t total_bytes = 0;
  auxiliary::CombineConfig combine;
};

SplitPlan split_plan(const SplitKernel& kernel, int tiles, int workers);

/// What a run hands to both kernels, `workspace` being its memory.
SplitParams split_params(const SplitPlan& plan, std::byte* workspace);

/// A line for the plan's text.
std::string explain_split(const AttentionProblem& problem, int tiles, int workers);

}  // namespace strobe::gpu
