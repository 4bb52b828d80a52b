// SPDX-License-Identifier: Apache-2.0
#include "gpu/plan/row_invariant.h"

#include <fmt/format.h>

#include <utility>

#include "call/arithmetic.h"
#include "gpu/plan/supported.h"

namespace strobe::gpu {
namespace {

/// Few queries are as many CTAs' as they have segments; a prompt takes time to join them, the longer the wider V is.
// log: ri-segment-2048
int keys_per_segment(int widest) { return widest <= 128 ? 2048 : 4096; }

}  // namespace

Status check_row_invariant(const AttentionProblem& problem) {
  if (!problem.row_invariant || problem.pass == Pass::backward) return {};
  for (const auto& [name, wanted] :
       {std::pair{"dropout", problem.dropout != 0.0F}, std::pair{"a bias", problem.modifiers.has_bias},
        std::pair{"a block mask", problem.modifiers.block_size != 0}}) {
    if (!wanted) continue;
    return unsupported("row_invariant with {} is not supported by the gpu engine; the cpu engine supports it", name);
  }
  return {};
}

int segment_blocks(const AttentionProblem& problem, int widest, int block_n) {
  const int blocks = keys_per_segment(widest) / block_n;
  return problem.seqlen_k > std::int64_t{blocks} * block_n ? blocks : 0;
}

std::int64_t segments_of(const AttentionProblem& problem, int segment_keys) {
  return segment_keys == 0 ? 0 : ceil_div<std::int64_t>(problem.seqlen_k, segment_keys);
}

std::string explain_row_invariant(int block_n, int segment_blocks) {
  std::string text =
      fmt::format("row-invariant a row's keys in blocks of {}, counted from its sequence's first", block_n);
  if (segment_blocks > 0) {
    text += fmt::format("; {} keys are a segment, and segments join from the last", segment_blocks * block_n);
  }
  return text;
}

}  // namespace strobe::gpu
