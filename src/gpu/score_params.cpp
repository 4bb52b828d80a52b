// SPDX-License-Identifier: Apache-2.0
#include "gpu/score_params.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "call/score_rule.h"
#include "call/visible_keys.h"

namespace strobe::gpu {
namespace {

const int* lengths(const ConstTensorView& view) { return static_cast<const int*>(view.data); }

/// The last query of a sequence sees every key that a causal mask aligned to the bottom right leaves, and a single
/// query is the last one.
bool hides_keys_on_the_right(const AttentionProblem& problem, const VisibleKeys& visible) {
  const bool last_query = problem.seqlen_q == 1 && !problem.packed_q && !problem.has_seqused_q;
  const bool only_causal = problem.causal == CausalMask::bottom_right && problem.window.right < 0 && problem.chunk == 0;
  return visible.bounded_right() && !(last_query && only_causal);
}

/// A distance as kernels hold it; one that is further than any key stays so, and sums of two fit 32 bits.
int distance(std::int64_t keys) {
  return static_cast<int>(std::min<std::int64_t>(keys, std::numeric_limits<int>::max() / 4));
}

}  // namespace

ScoreRule score_rule(const AttentionProblem& problem) {
  const VisibleKeys visible = visible_keys(problem);
  ScoreRule rule;
  rule.element = problem.dtype == DType::bfloat16 ? Element::bf16 : Element::fp16;
  rule.mask_left = visible.bounded_left();
  rule.mask_right = hides_keys_on_the_right(problem, visible);
  rule.chunked = visible.chunk > 0;
  rule.varlen = problem.packed_q || problem.packed_k || problem.has_seqused_q || problem.has_seqused_k;
  rule.softcap = score_scale(problem).capped;
  rule.alibi = problem.modifiers.has_alibi;
  rule.sink = problem.modifiers.has_sink;
  rule.max_logits = problem.wants_max_logits;
  rule.scale_first = rule.alibi || (!rule.softcap && !(problem.scale > 0.0F));
  return rule;
}

SequenceParams sequence_params(const AttentionProblem& problem, const Sequences& sequences) {
  SequenceParams params{};
  params.cu_seqlens_q = lengths(sequences.cu_seqlens_q);
  params.cu_seqlens_k = lengths(sequences.cu_seqlens_k);
  params.seqused_q = lengths(sequences.seqused_q);
  params.seqused_k = lengths(sequences.seqused_k);
  params.sequences = static_cast<int>(problem.batch);
  params.batch = params.sequences + (problem.packed_q ? 1 : 0);
  params.seqlen_q = static_cast<int>(problem.seqlen_q);
  params.seqlen_k = static_cast<int>(problem.seqlen_k);
  params.total_q = static_cast<int>(problem.total_q);
  return params;
}

VisibilityParams visibility_params(const AttentionProblem& problem) {
  const VisibleKeys visible = visible_keys(problem);
  return {.window_left = distance(visible.left),
          .window_right = distance(visible.right),
          .bottom_right = problem.causal == CausalMask::top_left ? 0 : 1,
          .chunk = distance(visible.chunk)};
}

ScoreParams score_params(const AttentionProblem& problem, const ScoreModifiers& modifiers) {
  const ScoreScale scale = score_scale(problem);
  ScoreParams params{};
  params.scale_log2 = scale.scale_log2;
  params.softcap_scale = scale.softcap_scale;
  params.alibi_slopes = static_cast<const float*>(modifiers.alibi_slopes.data);
  params.alibi_batch_stride = problem.modifiers.alibi_per_batch ? modifiers.alibi_slopes.strides[0] : 0;
  params.sink = static_cast<const float*>(modifiers.sink.data);
  return params;
}

}  // namespace strobe::gpu
