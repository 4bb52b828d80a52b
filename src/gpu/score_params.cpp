#include "gpu/score_params.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/math/constants.h"

namespace strobe::gpu {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();

const int* lengths(const ConstTensorView& view) { return static_cast<const int*>(view.data); }

bool has_softcap(const AttentionProblem& problem) { return problem.softcap > 0.0F; }

}  // namespace

Band band_of(const AttentionProblem& problem) {
  Band band;
  band.bottom_right = problem.causal != CausalMask::top_left;
  const auto bound = [](std::int64_t keys) { return static_cast<int>(std::min(keys, kMaxInt / 4)); };
  band.bounded_left = problem.window.left >= 0;
  if (band.bounded_left) band.left = bound(problem.window.left);
  // The last query of a sequence sees every key, and a single query is the last one.
  const bool last_query = problem.seqlen_q == 1 && !problem.packed_q && !problem.has_seqused_q;
  const bool causal = problem.causal == CausalMask::top_left || (problem.causal != CausalMask::none && !last_query);
  band.bounded_right = problem.window.right >= 0 || causal;
  if (problem.causal == CausalMask::none && band.bounded_right) band.right = bound(problem.window.right);
  if (problem.chunk > 0) {
    band.chunk = bound(problem.chunk);
    if (!band.bounded_left) band.left = bound(kMaxInt);
    if (!band.bounded_right) band.right = bound(kMaxInt);
    band.bounded_left = band.bounded_right = true;
  }
  return band;
}

ScoreRule score_rule(const AttentionProblem& problem) {
  const Band band = band_of(problem);
  ScoreRule rule;
  rule.element = problem.dtype == DType::bfloat16 ? Element::bf16 : Element::fp16;
  rule.mask_left = band.bounded_left;
  rule.mask_right = band.bounded_right;
  rule.chunked = band.chunk > 0;
  rule.varlen = problem.packed_q || problem.packed_k || problem.has_seqused_q || problem.has_seqused_k;
  rule.softcap = has_softcap(problem);
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
  const Band band = band_of(problem);
  return {.window_left = band.left,
          .window_right = band.right,
          .bottom_right = band.bottom_right ? 1 : 0,
          .chunk = band.chunk};
}

ScoreParams score_params(const AttentionProblem& problem, const ScoreModifiers& modifiers) {
  const bool softcap = has_softcap(problem);
  ScoreParams params{};
  params.scale_log2 = (softcap ? problem.softcap : problem.scale) * kLog2E;
  params.softcap_scale = softcap ? problem.scale / problem.softcap : 0.0F;
  params.alibi_slopes = static_cast<const float*>(modifiers.alibi_slopes.data);
  params.alibi_batch_stride = problem.modifiers.alibi_per_batch ? modifiers.alibi_slopes.strides[0] : 0;
  params.sink = static_cast<const float*>(modifiers.sink.data);
  return params;
}

}  // namespace strobe::gpu
