#include "cpu/reference/forward_row.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/reference/rounding.h"

namespace strobe::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The largest score; NaN if there is one; -inf where there is none.
double row_maximum(const std::vector<double>& scores) {
  double maximum = -kInfinity;
  for (const double score : scores) {
    if (std::isnan(score)) return score;
    maximum = std::max(maximum, score);
  }
  return maximum;
}

// A row of probabilities and what float32 does to it. Each computed weight, before the division by the row sum, is
// p (1 + delta); numerator and row sum share it, and each then makes roundings of its own.
struct Softmax {
  double maximum = 0.0;
  double row_sum = 0.0;
  double largest_error = 0.0;  // of a score
  double summation = 0.0;      // gamma of the roundings in a sum over the row, rescaling included
  std::vector<double> probability;
  std::vector<double> common_error;     // p delta
  std::vector<double> numerator_error;  // of one p in the numerator alone, per unit of |v|
  double sum_error = 0.0;               // relative error of the computed row sum
};

void bound_weights(Softmax& softmax, const Scores& scores, const ArithmeticModel& model) {
  const double u = model.unit_roundoff;
  const double count = static_cast<double>(scores.value.size());
  // A run of `count` keys touches at most this many tiles after its first; each may replace the running maximum.
  const double rescalings = std::ceil((count - 1.0) / static_cast<double>(model.block_n));
  softmax.summation = gamma(count + rescalings, u);
  const Rounding rounding = rounding_to(model.probabilities);
  const double exponentials = (rescalings + 1.0) * std::log1p(model.exp2_error);
  const double underflow = model.underflow / softmax.row_sum;
  for (std::size_t index = 0; index < scores.value.size(); ++index) {
    const double p = softmax.probability[index];
    double delta = 0.0;  // a score of -inf has no weight, exactly
    if (p > 0.0 || std::isfinite(scores.value[index])) {
      const double error = scores.error[index];
      const double distance = softmax.maximum - scores.value[index] + error + 3.0 * softmax.largest_error;
      delta = std::expm1(error + u * distance + exponentials);
    }
    const double weight = p + p * delta + underflow;
    softmax.common_error.push_back(p * delta + underflow);
    softmax.numerator_error.push_back(softmax.summation * weight +
                                      (1.0 + softmax.summation) *
                                          (rounding.relative * weight + rounding.absolute / softmax.row_sum));
    softmax.sum_error += softmax.common_error.back() + softmax.summation * weight;
  }
}

Softmax softmax_of(const Scores& scores, const ArithmeticModel& model) {
  Softmax softmax;
  softmax.maximum = row_maximum(scores.value);
  for (const double score : scores.value) {
    softmax.probability.push_back(std::exp(score - softmax.maximum));
    softmax.row_sum += softmax.probability.back();
  }
  for (double& probability : softmax.probability) probability /= softmax.row_sum;
  for (const double error : scores.error) softmax.largest_error = std::max(softmax.largest_error, error);
  bound_weights(softmax, scores, model);
  return softmax;
}

double lse_bound(const Softmax& softmax, const ArithmeticModel& model) {
  if (!(softmax.sum_error < 1.0)) return kInfinity;
  const double sum_moved = -std::log1p(-softmax.sum_error);
  const double log_reach = std::log(softmax.row_sum) + softmax.largest_error + sum_moved;
  // Roundings: ln(2) and the product with it, and the sum of maximum and logarithm.
  const double reach = std::fabs(softmax.maximum) + softmax.largest_error + log_reach;
  return sum_moved + model.log_error * log_reach +
         gamma(3.0, model.unit_roundoff) * (reach + model.log_error * log_reach);
}

// |O_computed - O| for O = N / 1 and the computed (N + e) / (1 + f): (|e - O f|) / (1 - |f|), where what numerator and
// row sum share enters by |v - O| alone.
void bound_output(ForwardRow& row, const Softmax& softmax, const double* v, DType output,
                  const ArithmeticModel& model) {
  const std::size_t head_dim_v = row.o.size();
  double weights = 0.0;
  for (std::size_t index = 0; index < softmax.probability.size(); ++index) {
    const double common = softmax.common_error[index];
    const double numerator = softmax.numerator_error[index];
    weights += softmax.probability[index] + common;
    const double* line = v + index * head_dim_v;
    for (std::size_t column = 0; column < head_dim_v; ++column) {
      row.o_bound[column] += common * std::fabs(line[column] - row.o[column]) + numerator * std::fabs(line[column]);
    }
  }
  const double count = static_cast<double>(softmax.probability.size());
  const double division = gamma(2.0, model.unit_roundoff);  // a reciprocal and a product
  for (std::size_t column = 0; column < head_dim_v; ++column) {
    const double magnitude = std::fabs(row.o[column]);
    const double sums = row.o_bound[column] + magnitude * softmax.summation * weights + count * model.underflow;
    const double quotient = softmax.sum_error < 1.0 ? sums / (1.0 - softmax.sum_error) : kInfinity;
    const double error = quotient + division * (magnitude + quotient) + model.underflow;
    row.o_bound[column] = rounding_to(output).stored_error(row.o[column], error);
  }
}

}  // namespace

ForwardRow forward_row(const Scores& scores, const std::vector<double>& v, std::int64_t head_dim_v, DType output,
                       const ArithmeticModel& model) {
  ForwardRow row;
  row.o.assign(head_dim_v, 0.0);
  row.o_bound.assign(head_dim_v, 0.0);
  row.lse = -kInfinity;
  if (row_maximum(scores.value) == -kInfinity) return row;
  row.empty = false;
  const Softmax softmax = softmax_of(scores, model);
  const double* visible_v = v.data() + scores.keys.begin * head_dim_v;
  for (std::size_t index = 0; index < softmax.probability.size(); ++index) {
    const double* line = visible_v + index * head_dim_v;
    for (std::int64_t column = 0; column < head_dim_v; ++column)
      row.o[column] += softmax.probability[index] * line[column];
  }
  row.lse = softmax.maximum + std::log(softmax.row_sum);
  row.lse_bound = lse_bound(softmax, model);
  bound_output(row, softmax, visible_v, output, model);
  return row;
}

}  // namespace strobe::reference
