// SPDX-License-Identifier: Apache-2.0
// What a call asks of its scores, as GPU kernels take it: the rule that selects a variant, and the numbers of one call.
#pragma once

#include "call/checked.h"
#include "call/problem.h"
#include "kernels/score/params.h"
#include "kernels/score/rule.h"
#include "kernels/sequence/params.h"

namespace strobe::gpu {

/// The problem without a softcap that is so large that it leaves scores up to 1e30 as they are, to float32's rounding:
/// kernels compute tanh with an error in proportion to it.
AttentionProblem without_idle_softcap(AttentionProblem problem);

/// Of float32 only the sm80 kernels have variants.
ScoreRule score_rule(const AttentionProblem& problem);

SequenceParams sequence_params(const AttentionProblem& problem, const Sequences& sequences);
OffsetParams offset_params(const Sequences& sequences);
VisibilityParams visibility_params(const AttentionProblem& problem);
/// Where a mask whose text is bits has them behind its `blocks` bytes.
std::int64_t block_bits_offset(std::int64_t blocks);

/// Behind them: which tiles of a forward have been taken, for kernels whose CTAs take one when they are done.
struct TileClaims {
  unsigned* count;         // of tiles, in all
  unsigned short* owners;  // of each tile, which CTA
};

/// Of the mask that `mask` is the blocks of.
TileClaims tile_claims(const AttentionProblem& problem, const ConstTensorView& mask);
Checked tile_claims_bytes(const AttentionProblem& problem);

BlockMaskParams block_mask_params(const AttentionProblem& problem, const ConstTensorView& mask);
TreeParams tree_params(const AttentionProblem& problem, const ConstTensorView& tree_mask);
ScoreParams score_params(const AttentionProblem& problem, const ScoreModifiers& modifiers, const RandomState& random);

}  // namespace strobe::gpu
