// SPDX-License-Identifier: Apache-2.0
#include "gpu/plan/text_blocks.h"

#include <algorithm>

#include "call/arithmetic.h"
#include "expression/formula.h"
#include "gpu/params/score.h"
#include "gpu/variant/text_code.h"
#include "kernels/score/modifiers/block_mask.h"

namespace strobe::gpu {
namespace {

using expression::bit;
using expression::Variable;

/// What bits may take of the workspace: of a mask that all heads share, those of 32k queries by as many keys.
constexpr std::int64_t kMostBitsBytes = std::int64_t{128} << 20U;

}  // namespace

TextBlocksShape::TextBlocksShape(const AttentionProblem& problem)
    : batches(problem.modifiers.blocks_per_batch ? std::max<std::int64_t>(problem.batch, 1) : 1),
      heads(problem.modifiers.blocks_per_head ? std::max<std::int64_t>(problem.heads_q, 1) : 1),
      q_blocks(std::max<std::int64_t>(1, ceil_div(problem.seqlen_q, problem.modifiers.block_size))),
      k_blocks(std::max<std::int64_t>(1, ceil_div(problem.seqlen_k, problem.modifiers.block_size))),
      block_size(problem.modifiers.block_size) {}

Checked TextBlocksShape::count() const { return Checked(batches) * heads * q_blocks * k_blocks; }

Checked TextBlocksShape::bits_bytes() const {
  return count() * static_cast<std::int64_t>(sizeof(unsigned)) * block_words(static_cast<int>(block_size));
}

bool takes_text_blocks(const AttentionProblem& problem) {
  constexpr std::int64_t kFewQueries = 64;
  if (problem.row_invariant && problem.pass == Pass::forward) return false;  // whose kernels have no block mask
  return has_text_mask(problem) && problem.seqlen_q > kFewQueries && problem.seqlen_k > 0 && problem.batch > 0 &&
         problem.heads_q > 0;
}

AttentionProblem with_text_blocks(AttentionProblem problem) {
  if (!takes_text_blocks(problem)) return problem;
  constexpr std::int64_t kBlockSize = 128;
  const expression::Variables variables = problem.expression.formula->mask_variables();
  const auto reads = [&](Variable variable) { return (variables & bit(variable)) != 0; };
  ModifierShape& modifiers = problem.modifiers;
  if (modifiers.block_size == 0) modifiers.block_size = kBlockSize;
  // Of sequences of their own lengths or places every block is one's own.
  const bool own = score_rule(problem).varlen;
  modifiers.blocks_per_batch = modifiers.blocks_per_batch || own || reads(Variable::batch);
  modifiers.blocks_per_head = modifiers.blocks_per_head || reads(Variable::head) || reads(Variable::head_kv);
  problem.expression.mask_is_bits = TextBlocksShape(problem).bits_bytes().at_most(kMostBitsBytes);
  return problem;
}

}  // namespace strobe::gpu
