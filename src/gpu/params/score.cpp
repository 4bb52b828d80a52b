// SPDX-License-Identifier: Apache-2.0
#include "gpu/params/score.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "call/arithmetic.h"
#include "call/random_state.h"
#include "call/score_rule.h"
#include "call/visible_keys.h"
#include "gpu/variant/text_code.h"

namespace strobe::gpu {
namespace {

constexpr std::int64_t kClaimsAlignment = 128;

const int* lengths(const ConstTensorView& view) { return static_cast<const int*>(view.data); }

/// The last query of a sequence sees every key that a causal mask aligned to the bottom right leaves, and where none
/// has more than one query, that is the last one.
bool hides_keys_on_the_right(const AttentionProblem& problem, const VisibleKeys& visible) {
  const bool last_query = problem.seqlen_q == 1;
  const bool only_causal = problem.causal == CausalMask::bottom_right && problem.window.right < 0 && problem.chunk == 0;
  return visible.bounded_right() && (problem.has_offsets || !(last_query && only_causal));
}

/// A scale must be positive to be left to the softmax, and so that slopes can be divided by it, of a reasonable size.
bool scales_first(const AttentionProblem& problem, const ScoreRule& rule) {
  const float scale = rule.softcap ? problem.softcap : problem.scale;
  if (!rule.alibi) return !(scale > 0.0F);
  return scale <= 0x1p-24F || scale >= 0x1p20F;
}

constexpr std::int64_t kMostKeys = std::numeric_limits<int>::max() / 4;

/// A distance as kernels hold it; one that is `furthest`, further than any key, stays so, and sums of two fit 32 bits.
int distance(std::int64_t keys, std::int64_t furthest) { return static_cast<int>(std::min(keys, furthest)); }

BiasParams bias_params(const AttentionProblem& problem, const ConstTensorView& bias) {
  if (!problem.modifiers.has_bias) return {};
  const auto pair_bytes = 2 * static_cast<std::int64_t>(size_of(bias.dtype));
  BiasParams params{.data = bias.data,
                    .batch_stride = problem.modifiers.bias_per_batch ? bias.strides[0] : 0,
                    .head_stride = problem.modifiers.bias_per_head ? bias.strides[1] : 0,
                    .row_stride = bias.strides[2],
                    .in_pairs = 0};
  const bool even = (params.batch_stride | params.head_stride | params.row_stride) % 2 == 0;
  const bool aligned = reinterpret_cast<std::uintptr_t>(bias.data) % static_cast<std::uintptr_t>(pair_bytes) == 0;
  params.in_pairs = even && aligned ? 1 : 0;
  return params;
}

DropoutParams dropout_params(const AttentionProblem& problem, const RandomState& random) {
  if (problem.dropout == 0.0F) return {};
  const DropoutKey key = dropout_key(problem.dropout, random.seed, random.offset);
  const std::int64_t heads = heads_in_all(random, problem.heads_q);
  return {.key = key,
          .state = reinterpret_cast<const unsigned long long*>(random.on_device),
          .keep_probability = key.keep_probability(),
          .keep_factor = 1.0F / key.keep_probability(),
          .first_head = dropout_head(random, problem.heads_q, 0, 0),
          .more_heads = static_cast<unsigned>(heads - problem.heads_q)};
}

}  // namespace

AttentionProblem without_idle_softcap(AttentionProblem problem) {
  constexpr float kIdleSoftcap = 0x1p120F;
  if (problem.softcap >= kIdleSoftcap) problem.softcap = 0.0F;
  return problem;
}

ScoreRule score_rule(const AttentionProblem& problem) {
  const VisibleKeys visible = visible_keys(problem);
  ScoreRule rule;
  rule.element = problem.dtype == DType::float32            ? Element::fp32
                 : output_dtype(problem) == DType::bfloat16 ? Element::bf16
                                                            : Element::fp16;
  rule.mask_left = visible.bounded_left();
  rule.mask_right = hides_keys_on_the_right(problem, visible);
  rule.chunked = visible.chunk > 0;
  rule.varlen = problem.packed_q || problem.packed_k || problem.has_seqused_q || problem.has_seqused_k ||
                problem.has_leftpad_k || problem.page_size != 0 || problem.has_offsets;
  rule.leftpad = problem.has_leftpad_k;
  rule.softcap = problem.softcap > 0.0F;
  rule.log_length = problem.log_length > 0;
  rule.alibi = problem.modifiers.has_alibi;
  rule.bias = problem.modifiers.has_bias;
  rule.bias_float32 = rule.bias && problem.modifiers.bias_dtype == DType::float32;
  rule.sink = problem.modifiers.has_sink;
  rule.max_logits = problem.wants_max_logits;
  rule.dropout = problem.dropout != 0.0F;
  rule.block_mask = static_cast<int>(problem.modifiers.block_size);
  if (problem.expression.mask_is_bits) {
    rule.block_bits = problem.pass == Pass::backward ? BlockBits::key_bits : BlockBits::query_bits;
  }
  rule.tree_mask = problem.has_tree_mask;
  // What a backward subtracts of the products would have to be divided by each sequence's factor.
  const bool factor_in_backward = rule.log_length && problem.pass == Pass::backward;
  rule.text = text_rule(problem);
  rule.normalized = is_normalized(problem);
  rule.scale_first = !scores_are_natural(rule) && (scales_first(problem, rule) || factor_in_backward);
  rule.row_invariant = problem.pass == Pass::forward && problem.row_invariant;
  rule.offsets = problem.has_offsets;
  rule.query_values = problem.has_qv;
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
  params.leftpad_k = lengths(sequences.leftpad_k);
  return params;
}

OffsetParams offset_params(const Sequences& sequences) {
  return {.q = lengths(sequences.offset_q), .k = lengths(sequences.offset_k)};
}

VisibilityParams visibility_params(const AttentionProblem& problem) {
  const VisibleKeys visible = visible_keys(problem);
  const std::int64_t furthest = problem.has_offsets ? kPositions : kMostKeys;
  return {.window_left = distance(visible.left, furthest),
          .window_right = distance(visible.right, furthest),
          .bottom_right = problem.causal == CausalMask::top_left ? 0 : 1,
          .chunk = distance(visible.chunk, furthest)};
}

std::int64_t block_bits_offset(std::int64_t blocks) { return round_up<std::int64_t>(blocks, 128); }

Checked tile_claims_bytes(const AttentionProblem& problem) {
  if (problem.pass != Pass::forward) return Checked(0);
  constexpr std::int64_t kLeastRows = 64;  // of a tile
  const Checked tiles = Checked(ceil_div(problem.seqlen_q, kLeastRows)) * problem.batch * problem.heads_q;
  return Checked(kClaimsAlignment) + tiles * static_cast<std::int64_t>(sizeof(unsigned short));
}

TileClaims tile_claims(const AttentionProblem& problem, const ConstTensorView& mask) {
  const std::int64_t blocks = mask.shape[0] * mask.shape[1] * mask.shape[2] * mask.shape[3];
  const std::int64_t bits = blocks * static_cast<std::int64_t>(sizeof(unsigned)) *
                            block_words(static_cast<int>(problem.modifiers.block_size));
  auto* const claims = static_cast<unsigned char*>(const_cast<void*>(mask.data)) + block_bits_offset(blocks) + bits;
  return {.count = reinterpret_cast<unsigned*>(claims),
          .owners = reinterpret_cast<unsigned short*>(claims + kClaimsAlignment)};
}

BlockMaskParams block_mask_params(const AttentionProblem& problem, const ConstTensorView& mask) {
  BlockMaskParams params{.data = static_cast<const unsigned char*>(mask.data),
                         .batch_stride = problem.modifiers.blocks_per_batch ? mask.strides[0] : 0,
                         .head_stride = problem.modifiers.blocks_per_head ? mask.strides[1] : 0,
                         .row_stride = mask.strides[2],
                         .bits = nullptr};
  if (problem.expression.mask_is_bits) {
    const std::int64_t blocks = mask.shape[0] * mask.shape[1] * mask.shape[2] * mask.shape[3];
    params.bits = reinterpret_cast<const unsigned*>(params.data + block_bits_offset(blocks));
  }
  return params;
}

TreeParams tree_params(const AttentionProblem& problem, const ConstTensorView& mask) {
  return {.words = static_cast<const unsigned long long*>(mask.data),
          .batch_stride = problem.packed_q ? 0 : mask.strides[0]};
}

/// tanh(x) is x (a_0 + a_1 x^2 + ...) for |x| up to `reach`: of scores, as exponents.
template <int count>
SoftcapTerms<count> softcap_terms(const AttentionProblem& problem, double scale_log2, double reach,
                                  const double (&terms)[count]) {
  const double argument = static_cast<double>(problem.scale) / static_cast<double>(problem.softcap);
  SoftcapTerms<count> of_scores{};
  double power = argument * scale_log2;
  for (int i = 0; i < count; ++i) {
    of_scores.terms[i] = static_cast<float>(terms[i] * power);
    power *= argument * argument;
  }
  of_scores.reach = static_cast<float>(reach / argument);
  return of_scores;
}

// Minimax in the absolute error, which is 4.9e-8 and 1.9e-7.
constexpr double kNearTerms[] = {0.9999986329824756, -0.33315701527846353, 0.12762231570345553};
constexpr double kFarTerms[] = {0.9999972283173021, -0.33323076474971747, 0.13226091568200624, -0.049280445822051176,
                                0.012318830693037658};

ScoreParams score_params(const AttentionProblem& problem, const ScoreModifiers& modifiers, const RandomState& random) {
  const ScoreScale scale = score_scale(problem, 0);  // without the factor of a sequence, which is the kernels'
  ScoreParams params{};
  params.scale_log2 = scale.scale_log2;
  params.scale = problem.softcap > 0.0F ? problem.softcap : problem.scale;
  if (scale.capped) {
    params.softcap.exponent = static_cast<float>(2.0 * std::numbers::log2e * static_cast<double>(problem.scale) /
                                                 static_cast<double>(problem.softcap));
    params.softcap.half = -0.5F / scale.scale_log2;
    params.softcap.near = softcap_terms(problem, scale.scale_log2, 0.25, kNearTerms);
    params.softcap.far = softcap_terms(problem, scale.scale_log2, 0.75, kFarTerms);
  }
  params.alibi.slopes = static_cast<const float*>(modifiers.alibi_slopes.data);
  params.alibi.batch_stride = problem.modifiers.alibi_per_batch ? modifiers.alibi_slopes.strides[0] : 0;
  params.sink = static_cast<const float*>(modifiers.sink.data);
  params.bias = bias_params(problem, modifiers.bias);
  params.dropout = dropout_params(problem, random);
  if (problem.log_length > 0) {
    params.log_length.inverse_log2 = static_cast<float>(1.0 / std::log2(static_cast<double>(problem.log_length)));
  }
  return params;
}

}  // namespace strobe::gpu
