// SPDX-License-Identifier: Apache-2.0
#include "reference/bound/backward_row.h"

#include <cmath>

#include "reference/bound/rounding.h"

namespace strobe::reference {
namespace {

// Where LSE joins the sum of S it is rounded as a product of it, and besides: by its quotient with the scale (two), by
// what its parts leave of it, and by the product of the sum with the scale.
constexpr double kJoiningRoundings = 4.0;

// exp(score - LSE), from the engine's own score, within `error` of it, and the LSE that it was given. `joined`: the
// products of the sum that LSE may have joined, 0 if it joins none.
Bounded probability(double score, double error, double joined, const ForwardRow& row, const ArithmeticModel& model) {
  const double exponent = score - row.lse;
  if (std::isinf(score)) return {std::isinf(row.lse) ? 0.0 : std::exp(exponent), 0.0};  // no weight, exactly
  const double p = std::exp(exponent);
  const double u = model.unit_roundoff;
  // Roundings of LSE: log2(e), the product with it, and where P is computed scaled the exponent of that.
  const bool scaled = model.passed_scale != 1.0;
  const double magnitude = std::fabs(row.lse) + row.lse_bound + std::log(model.passed_scale);
  const double joining =
      joined > 0.0 && model.joining_parts > 0.0 ? joined + model.joining_parts + kJoiningRoundings : 0.0;
  const double more =
      joined > 0.0 ? 1.0 + model.joining_parts / joined : 1.0;  // every product meets the parts' additions
  const double moved = more * error + row.lse_bound + gamma((scaled ? 3.0 : 2.0) + joining, u) * magnitude;
  // Where LSE is subtracted before log2(e) is multiplied, the difference meets three roundings.
  const double shift = moved + gamma(3.0, u) * (std::fabs(exponent) + moved) + std::log1p(model.exp2_error);
  return {p, weight_error(exponent, 1.0, p, shift) + model.underflow};
}

// What dS is dP - D times: P, or 1 where the scores themselves are P, and 0 of a hidden key.
Bounded weight_of(const Scores& scores, std::size_t index, const Bounded& p) {
  if (scores.normalized) return p;
  return {scores.value[index] == -kInfinity ? 0.0 : 1.0, 0.0};
}

// left * right, rounded once.
Bounded product(const Bounded& left, const Bounded& right, const ArithmeticModel& model) {
  const double magnitude = std::fabs(left.value * right.value);
  const double reach = (std::fabs(left.value) + left.error) * (std::fabs(right.value) + right.error);
  return {left.value * right.value, reach * (1.0 + model.unit_roundoff) - magnitude + model.underflow};
}

// Times `scale` while it is stored.
Bounded rounded(const Bounded& exact, DType dtype, double scale = 1.0) {
  return {exact.value, rounding_to(dtype).stored_error(exact.value * scale, exact.error * scale) / scale};
}

// P, or what is made of it, on its way to dP. `keep`: what it is stored times, beside the power of two.
Bounded passed(const Bounded& p, const ArithmeticModel& model, double keep = 1.0) {
  return rounded(p, model.passed_probabilities, model.passed_scale * keep);
}

// Of scores that are P, the slope: what passes bfloat16 tensors' may be bfloat16, where it may be large.
Bounded passed_slope(const Scores& scores, const Bounded& slope, const ArithmeticModel& model) {
  if (scores.normalized || model.probabilities != DType::bfloat16) return passed(slope, model);
  return rounded(slope, DType::bfloat16);
}

// P as dV sums it: of what was passed, where the engine keeps nothing else.
Bounded summed(const Bounded& p, const ArithmeticModel& model, double keep) {
  const Bounded once = passed(p, model, keep);
  return model.probabilities == model.passed_probabilities ? once : rounded(once, model.probabilities, keep);
}

// dS of the text, of the score that it was given and of the product: slopes join one after another, in any order.
void add_through_text(const Scores& scores, std::size_t index, const Bounded& p, const Bounded& difference,
                      const ArithmeticModel& model, double keep, RowGradients& result) {
  if (std::isinf(scores.value[index]) && p.value == 0.0) {  // hidden, whatever the slopes are
    result.d_text.push_back({});
    result.d_score.push_back({});
    result.d_product.push_back({});
    return;
  }
  const Bounded text_slope{scores.text[index].slope.value, scores.text[index].slope.error};
  const Bounded slope{scores.slope[index], scores.slope_error[index]};
  result.d_text.push_back(product(passed(p, model), difference, model));
  result.d_score.push_back(product(passed(product(p, text_slope, model), model), difference, model));
  const Bounded both = product(text_slope, slope, model);
  const Bounded sloped = passed_slope(scores, product(p, both, model), model);
  result.d_product.push_back(rounded(product(sloped, difference, model), model.probabilities, keep));
}

}  // namespace

Bounded row_correction(const ForwardRow& row, const double* d_o, double d_lse, const ArithmeticModel& model) {
  double value = -d_lse;
  double moved = 0.0;
  double magnitude = std::fabs(d_lse);
  for (std::size_t column = 0; column < row.o.size(); ++column) {
    value += d_o[column] * row.o[column];
    moved += std::fabs(d_o[column]) * row.o_bound[column];
    magnitude += std::fabs(d_o[column]) * (std::fabs(row.o[column]) + row.o_bound[column]);
  }
  const double terms = static_cast<double>(row.o.size()) + 1.0;
  return {value, moved + gamma(terms, model.unit_roundoff) * magnitude + terms * model.underflow};
}

RowGradients row_gradients(const Scores& scores, const ForwardRow& row, const Bounded& correction, const double* d_o,
                           const std::vector<double>& v_transposed, const Head& head) {
  const ArithmeticModel& model = head.model;
  const double u = model.unit_roundoff;
  const auto head_dim_v = static_cast<std::int64_t>(row.o.size());
  std::vector<double> d_p;
  std::vector<double> magnitudes;
  multiply_row(d_o, v_transposed, head_dim_v, scores.ranges, head.rows.seqlen_k, d_p, magnitudes);
  const std::vector<double> lost =
      lost_products(d_o, v_transposed, head_dim_v, scores.ranges, head.rows.seqlen_k, model.smallest_input);
  const double keep = model.keep_joins_sums && head.modifiers.has_dropout() ? head.modifiers.keep_probability() : 1.0;
  RowGradients result;
  for (std::size_t index = 0; index < d_p.size(); ++index) {
    const Bounded p = scores.normalized
                          ? probability(scores.value[index], scores.error[index], scores.products, row, model)
                          : score_weight(scores, index);
    const Bounded weight = weight_of(scores, index, p);
    const double factor = scores.dropout[index];
    // Dropout rounds one over the probability of being kept, and the product with it.
    const double dropout_roundings = head.modifiers.has_dropout() ? 2.0 : 0.0;
    const Bounded kept{p.value * factor,
                       factor * (p.error + gamma(dropout_roundings, u) * (std::fabs(p.value) + p.error))};
    // Scores that are P are summed as they are: only what dP is multiplied with passes.
    result.probability.push_back(scores.normalized ? summed(kept, model, keep)
                                                   : rounded(kept, model.probabilities, keep));
    // D enters as one more term of the sum, wherever the engine subtracts it, or in parts.
    const double terms = static_cast<double>(head_dim_v) + 1.0 + model.joining_parts + dropout_roundings;
    const double magnitude = factor * magnitudes[index] + std::fabs(correction.value) + correction.error;
    const Bounded difference{d_p[index] * factor - correction.value,
                             correction.error + (gamma(terms, u) + model.product_error) * magnitude +
                                 factor * lost[index] + terms * model.underflow * model.passed_scale};
    if (!scores.text.empty()) {
      add_through_text(scores, index, weight, difference, model, keep, result);
      continue;
    }
    result.d_score.push_back(product(passed(weight, model), difference, model));
    if (head.options.softcap > 0.0F) {  // whatever dP - D is multiplied with first, what passes has the slope in it
      const Bounded slope{scores.slope[index], scores.slope_error[index]};
      const Bounded sloped = passed_slope(scores, product(weight, slope, model), model);
      result.d_product.push_back(rounded(product(sloped, difference, model), model.probabilities, keep));
    } else {
      result.d_product.push_back(rounded(result.d_score.back(), model.probabilities, keep));
    }
  }
  return result;
}

Bounded sink_gradient(double sink, const ForwardRow& row, const Bounded& correction, const ArithmeticModel& model) {
  const Bounded p = probability(sink, sink_error(sink, model), 0.0, row, model);
  return product({-p.value, p.error}, correction, model);
}

}  // namespace strobe::reference
