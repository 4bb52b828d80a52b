// SPDX-License-Identifier: Apache-2.0
// The tangents of the forward and their bound: docs/accuracy.md, "The JVP".
#include <algorithm>
#include <cmath>

#include "reference/bound/forward_row.h"
#include "reference/bound/parallel.h"
#include "reference/bound/reference.h"
#include "reference/bound/rounding.h"

namespace strobe::reference {
namespace {

// The largest sum of magnitudes that cannot overflow float32 on the way to a tangent.
constexpr double kLargestSum = 0x1p120;

// One head's rows and their tangents; zeros where a tangent is not given.
struct Operands {
  std::vector<double> q;
  std::vector<double> q_tangent;
  std::vector<double> k_transposed;
  std::vector<double> k_tangent_transposed;
  std::vector<double> v;
  std::vector<double> v_tangent;
};

Operands operands_of(const JvpArguments& arguments, const SequenceRows& rows, std::int64_t head) {
  const std::int64_t head_kv = head / (heads_of(arguments.q) / heads_of(arguments.k));
  const auto queries = [&](const ConstTensorView& view) { return read_head(view, rows.first_q, rows.seqlen_q, head); };
  const auto keys = [&](const ConstTensorView& view) { return read_head(view, rows.first_k, rows.seqlen_k, head_kv); };
  const auto tangent = [](const ConstTensorView& view, const auto& read, const std::vector<double>& like) {
    return view.given() ? read(view) : std::vector<double>(like.size(), 0.0);
  };
  const std::int64_t head_dim = head_dim_of(arguments.q);
  const std::vector<double> k = keys(arguments.k);
  const std::vector<double> k_tangent = tangent(arguments.k_tangent, keys, k);
  Operands operands{.q = queries(arguments.q),
                    .q_tangent = {},
                    .k_transposed = transpose(k, rows.seqlen_k, head_dim),
                    .k_tangent_transposed = transpose(k_tangent, rows.seqlen_k, head_dim),
                    .v = keys(arguments.v),
                    .v_tangent = {}};
  operands.q_tangent = tangent(arguments.q_tangent, queries, operands.q);
  operands.v_tangent = tangent(arguments.v_tangent, keys, operands.v);
  return operands;
}

// s' of the visible keys: the sum of two dot products, times the scale and the slope of the softcap.
std::vector<Bounded> score_tangents(const Operands& operands, std::int64_t query, std::int64_t head_dim,
                                    const Scores& scores, const Head& head) {
  const ArithmeticModel& model = head.model;
  std::vector<double> of_q;
  std::vector<double> of_k;
  std::vector<double> magnitudes_q;
  std::vector<double> magnitudes_k;
  multiply_row(operands.q_tangent.data() + query * head_dim, operands.k_transposed, head_dim, scores.ranges,
               head.rows.seqlen_k, of_q, magnitudes_q);
  multiply_row(operands.q.data() + query * head_dim, operands.k_tangent_transposed, head_dim, scores.ranges,
               head.rows.seqlen_k, of_k, magnitudes_k);
  const double scale = product_scale(head.options, head_dim, head.rows.seqlen_k);
  const double dimensions = 2.0 * static_cast<double>(head_dim);
  // Roundings besides the sums': the scale's, those of the scale over the softcap and times it, and the products with
  // slope and scale.
  const double relative = gamma(dimensions + product_scale_roundings(head.options) + 4.0, model.unit_roundoff);
  std::vector<Bounded> tangents;
  for (std::size_t index = 0; index < of_q.size(); ++index) {
    const double product = of_q[index] + of_k[index];
    const double magnitude = magnitudes_q[index] + magnitudes_k[index];
    const double slope = scores.slope[index];
    const double slope_error = scores.slope_error[index];
    const double summed = relative * magnitude + dimensions * model.underflow;
    double error =
        std::fabs(scale) * ((slope + slope_error) * summed + slope_error * std::fabs(product)) + 2.0 * model.underflow;
    if (magnitude * std::max(1.0, std::fabs(scale)) > kLargestSum) error = kInfinity;
    tangents.push_back({scale * slope * product, error});
  }
  return tangents;
}

// A sum over the row of weights times what the keys hold.
struct RowSum {
  Bounded sum;
  double summation;  // gamma of its roundings
  double underflow;

  // weight * (own + factor * other), `own` and `other` exact.
  void add(const Bounded& weight, double own, const Bounded& factor, double other) {
    const double term = own + factor.value * other;
    const double moved = factor.error * std::fabs(other);
    const double reach = weight.value + weight.error;
    const double magnitude = std::fabs(own) + std::fabs(factor.value * other) + moved;
    sum.value += weight.value * term;
    sum.error += weight.error * std::fabs(term) + reach * (moved + summation * magnitude) +
                 underflow * (2.0 + std::fabs(own) + std::fabs(other));
  }
};

struct TangentRow {
  std::vector<Bounded> o;
  Bounded lse;
};

TangentRow tangent_row(const Operands& operands, std::int64_t query, const JvpArguments& arguments, const Head& head) {
  const ArithmeticModel& model = head.model;
  const std::int64_t head_dim = head_dim_of(arguments.q);
  const std::int64_t head_dim_v = head_dim_of(arguments.v);
  const Scores scores = scores_of(query, operands.q.data() + query * head_dim, operands.k_transposed, head_dim, head);
  const ForwardRow row = forward_row(scores, operands.v, head_dim_v, DType::float32, model);
  TangentRow result{std::vector<Bounded>(head_dim_v), {}};
  if (row.empty) return result;
  const std::vector<Bounded> weights = row_weights(scores, model);
  const std::vector<Bounded> tangents = score_tangents(operands, query, head_dim, scores, head);
  // The weights' errors hold the roundings of one sum over the row. A tangent's has two terms a key, and besides: the
  // product of P and s', the quotient with the row sum, and dropout's with the probability of being kept.
  const double summation = gamma(static_cast<double>(weights.size()) + 8.0, model.unit_roundoff);
  const RowSum nothing{.sum = {}, .summation = summation, .underflow = model.underflow};
  RowSum lse = nothing;
  std::vector<RowSum> o(head_dim_v, nothing);
  for (std::size_t index = 0; index < weights.size(); ++index) {
    const double z = scores.dropout[index];
    const Bounded kept{weights[index].value * z, weights[index].error * z};
    lse.add(weights[index], 0.0, tangents[index], 1.0);
    for (std::int64_t c = 0; c < head_dim_v; ++c) {
      const std::int64_t at = scores.keys[index] * head_dim_v + c;
      o[c].add(kept, operands.v_tangent[at], tangents[index], operands.v[at]);
    }
  }
  result.lse = lse.sum;
  for (std::int64_t c = 0; c < head_dim_v; ++c) {
    const Bounded& sum = o[c].sum;
    const double taken = (std::fabs(lse.sum.value) + lse.sum.error) * (std::fabs(row.o[c]) + row.o_bound[c]);
    const double moved = sum.error + taken - std::fabs(lse.sum.value * row.o[c]);
    const double rounded = gamma(2.0, model.unit_roundoff) * (std::fabs(sum.value) + sum.error + taken);
    result.o[c] = {sum.value - lse.sum.value * row.o[c], moved + rounded + model.underflow};
  }
  return result;
}

void put(BoundedTensor& tensor, std::int64_t index, const Bounded& element, DType dtype) {
  tensor.value[index] = element.value;
  tensor.bound[index] = rounding_to(dtype).stored_error(element.value, element.error);
}

}  // namespace

JvpResult jvp(const JvpArguments& arguments, const AttentionOptions& options, const ArithmeticModel& model,
              int threads) {
  const std::int64_t heads = heads_of(arguments.q);
  const std::int64_t head_dim_v = head_dim_of(arguments.v);
  const std::int64_t row_heads = element_count(arguments.q) / head_dim_of(arguments.q);
  const std::vector<SequenceRows> sequences = sequence_rows(arguments.q, arguments.k, arguments.sequences);
  JvpResult result{.o_tangent = zeros(row_heads * head_dim_v), .lse_tangent = zeros(row_heads)};
  run_tasks(static_cast<std::int64_t>(sequences.size()) * heads, threads, [&](std::int64_t task) {
    const SequenceRows& rows = sequences[task / heads];
    const std::int64_t h = task % heads;
    const HeadModifiers modifiers(arguments.modifiers, options, arguments.random, rows, h, heads,
                                  heads_of(arguments.k));
    const Head head{options, model, rows, modifiers};
    const Operands operands = operands_of(arguments, rows, h);
    for (std::int64_t query = 0; query < rows.seqlen_q; ++query) {
      const TangentRow row = tangent_row(operands, query, arguments, head);
      const std::int64_t at = ((rows.first_q + query) * heads + h) * head_dim_v;
      for (std::int64_t c = 0; c < head_dim_v; ++c) put(result.o_tangent, at + c, row.o[c], arguments.q.dtype);
      put(result.lse_tangent, lse_index(rows.first_q + query, h, heads, rows_per_entry(arguments.q)), row.lse,
          DType::float32);
    }
  });
  return result;
}

}  // namespace strobe::reference
