// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>

#include "call/eight_bit.h"
#include "reference/bound/eight_bit.h"
#include "reference/bound/forward_row.h"
#include "reference/bound/parallel.h"
#include "reference/bound/reference.h"
#include "reference/bound/rounding.h"
#include "reference/dense_cache.h"

namespace strobe::reference {
namespace {

// The largest score of the rows so far and what the computed one may be.
struct LargestScore {
  double value = -kInfinity;
  double lowest = -kInfinity;
  double highest = -kInfinity;

  void take(const Scores& scores) {
    for (std::size_t index = 0; index < scores.value.size(); ++index) {
      const double score = scores.value[index];
      const double error = scores.error[index];
      if (std::isnan(score) || score > value) value = score;  // NaN stays: nothing is larger
      if (score == -kInfinity) continue;
      lowest = std::max(lowest, score - error);
      highest = std::max(highest, score + error);
    }
  }

  double bound(const ArithmeticModel& model) const {
    if (std::isinf(value)) return 0.0;
    const double moved = std::max(value - lowest, highest - value);
    // Roundings on the way from base 2: ln(2) and the product with it.
    return moved + gamma(2.0, model.unit_roundoff) * (std::fabs(value) + moved) + model.underflow;
  }
};

HeadOperands operands_of(const ForwardArguments& arguments, const Head& head) {
  const SequenceRows& rows = head.rows;
  const std::int64_t head_kv = head.modifiers.head() / (heads_of(arguments.q) / heads_of(arguments.k));
  std::int64_t head_dim = head_dim_of(arguments.q);
  const auto keys_of = [&](const ConstTensorView& view, const ConstTensorView& scales) {
    return is_eight_bit(view.dtype) ? stored_rows(view, scales, head, head_kv, arguments.q.dtype)
                                    : read_head(view, rows.first_k, rows.seqlen_k, head_kv);
  };
  std::vector<double> q = read_head(arguments.q, rows.first_q, rows.seqlen_q, head.modifiers.head());
  std::vector<double> k = keys_of(arguments.k, arguments.k_descale);
  std::vector<double> v = keys_of(arguments.v, arguments.v_descale);
  if (arguments.qv.given()) {  // one product of longer rows
    head_dim += head_dim_of(arguments.qv);
    q = join_columns(q, read_head(arguments.qv, rows.first_q, rows.seqlen_q, head.modifiers.head()), rows.seqlen_q);
    k = join_columns(k, v, rows.seqlen_k);
  }
  return {.head_dim = head_dim,
          .q = std::move(q),
          .k_transposed = transpose(k, rows.seqlen_k, head_dim),
          .v = std::move(v),
          .value_scales = head.model.stored_operands ? stored_scales(arguments.v, arguments.v_descale, head, head_kv)
                                                     : std::vector<double>()};
}

// One head of one sequence.
void forward_head(const ForwardArguments& arguments, const Head& head, std::int64_t head_q, ForwardResult& result) {
  const SequenceRows& rows = head.rows;
  const std::int64_t heads = heads_of(arguments.q);
  const std::int64_t head_dim_v = head_dim_of(arguments.o);
  const bool eight_bit = is_eight_bit(arguments.q.dtype);
  const HeadOperands operands = eight_bit ? eight_bit_operands(arguments, head) : operands_of(arguments, head);
  const std::int64_t head_dim = operands.head_dim;
  LargestScore largest;
  for (std::int64_t query = 0; query < rows.seqlen_q; ++query) {
    Scores scores = scores_of(query, operands.q.data() + query * head_dim, operands.k_transposed, head_dim, head);
    largest.take(scores);
    if (head.model.stored_operands) round_small_probabilities(scores, operands.value_scales);
    if (eight_bit) round_probabilities(scores, operands, arguments.q.dtype, head.model);
    const Rotation& rotation = arguments.v_rotation;
    const DType stored = rotation.given ? DType::float32 : arguments.o.dtype;
    ForwardRow row = forward_row(scores, operands.v, head_dim_v, stored, head.model);
    if (rotation.given) rotate_back(row, rotation, arguments.o.dtype, head.model);
    const std::int64_t o_index = ((rows.first_q + query) * heads + head_q) * head_dim_v;
    std::copy(row.o.begin(), row.o.end(), result.o.value.begin() + o_index);
    std::copy(row.o_bound.begin(), row.o_bound.end(), result.o.bound.begin() + o_index);
    const std::int64_t index = lse_index(rows.first_q + query, head_q, heads, rows_per_entry(arguments.q));
    result.lse.value[index] = row.lse;
    result.lse.bound[index] = row.lse_bound;
  }
  result.max_logits.value[rows.sequence * heads + head_q] = largest.value;
  result.max_logits.bound[rows.sequence * heads + head_q] = largest.bound(head.model);
}

BoundedTensor filled(std::int64_t count, double value) {
  return {std::vector<double>(count, value), std::vector<double>(count, 0.0)};
}

}  // namespace

ForwardResult forward(const ForwardArguments& arguments, const AttentionOptions& options, const ArithmeticModel& model,
                      int threads) {
  if (DenseCache::needed(arguments)) return forward(DenseCache(arguments).arguments(), options, model, threads);
  AttentionOptions used = options;
  // Operands of 8 bits have a column that head_dim does not count.
  if (is_eight_bit(arguments.q.dtype)) used.scale = scale_of(options, head_dim_of(arguments.q));
  const std::int64_t heads = heads_of(arguments.q);
  const std::int64_t row_heads = element_count(arguments.q) / head_dim_of(arguments.q);
  const std::vector<SequenceRows> sequences = sequence_rows(arguments.q, arguments.k, arguments.sequences);
  const std::int64_t tasks = static_cast<std::int64_t>(sequences.size()) * heads;
  ForwardResult result{.o = filled(row_heads * head_dim_of(arguments.o), 0.0),
                       .lse = filled(row_heads, -kInfinity),
                       .max_logits = filled(tasks, -kInfinity)};
  run_tasks(tasks, threads, [&](std::int64_t task) {
    const SequenceRows& rows = sequences[task / heads];
    const HeadModifiers modifiers(arguments.modifiers, used, arguments.random, rows, task % heads, heads,
                                  heads_of(arguments.k));
    forward_head(arguments, {used, model, rows, modifiers.with_tree(arguments.tree_mask, rows.first_q)}, task % heads,
                 result);
  });
  return result;
}

}  // namespace strobe::reference
