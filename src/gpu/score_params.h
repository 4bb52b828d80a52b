// What a call asks of its scores, as GPU kernels take it: the rule that selects a variant, and the numbers of one call.
#pragma once

#include "call/problem.h"
#include "kernels/score/params.h"
#include "kernels/score/rule.h"

namespace strobe::gpu {

/// Keys on either side of the diagonal that a query sees, where the diagonal ends, and chunks. A chunk bounds both
/// sides: one that has no bound of its own reaches beyond all keys.
struct Band {
  bool bounded_left = false;
  bool bounded_right = false;
  int left = 0;
  int right = 0;
  bool bottom_right = true;
  int chunk = 0;  // 0: keys are not in chunks
};
Band band_of(const AttentionProblem& problem);

/// `problem.dtype` is bfloat16 or float16.
ScoreRule score_rule(const AttentionProblem& problem);

SequenceParams sequence_params(const AttentionProblem& problem, const Sequences& sequences);
VisibilityParams visibility_params(const AttentionProblem& problem);
ScoreParams score_params(const AttentionProblem& problem, const ScoreModifiers& modifiers);

}  // namespace strobe::gpu
