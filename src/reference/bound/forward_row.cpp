// SPDX-License-Identifier: Apache-2.0
#include "reference/bound/forward_row.h"

#include <algorithm>
#include <cmath>

#include "reference/bound/rounding.h"

namespace strobe::reference {
namespace {

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
  double exponentials = 0.0;   // ln of what the exponentials that make a weight may add to it
  double terms = 0.0;          // roundings in a sum over the row, rescaling included
  double summation = 0.0;      // gamma of them
  std::vector<double> probability;
  std::vector<double> common_error;     // p delta
  std::vector<double> numerator_error;  // of one p in the numerator alone, per unit of |v|
  double sink = 0.0;                    // its weight, 0 without one
  double sink_error = 0.0;              // as common_error
  double sum_error = 0.0;               // relative error of the computed row sum
};

// How often a running maximum may be replaced: an interval of n keys touches at most 1 + ceil((n - 1) / block_n) tiles,
// and only the first of all tiles replaces nothing. Intervals may share tiles: all touch no more than one from the
// first key to the last. The sink may replace it once more.
double rescalings(const Scores& scores, const ArithmeticModel& model) {
  const auto touched = [&](double keys) { return 1.0 + std::ceil((keys - 1.0) / static_cast<double>(model.block_n)); };
  double tiles = 0.0;
  for (const KeyRange& keys : scores.ranges) tiles += touched(static_cast<double>(keys.size()));
  if (!scores.ranges.empty()) {
    tiles = std::min(tiles, touched(static_cast<double>(scores.ranges.back().end - scores.ranges.front().begin)));
  }
  return std::max(0.0, tiles - (scores.sink ? 0.0 : 1.0));
}

// p delta of one weight.
double common_error(const Softmax& softmax, double score, double error, double p, const ArithmeticModel& model) {
  if (std::isinf(score)) return 0.0;  // a score of -inf has no weight, exactly
  const double distance = softmax.maximum - score + model.maximum_slack + error + 3.0 * softmax.largest_error;
  // Roundings of the distance: the subtraction, the product with the factor that makes an exponent, and that factor.
  const double shift = error + gamma(3.0, model.unit_roundoff) * distance + softmax.exponentials;
  return weight_error(score - softmax.maximum, softmax.row_sum, p, shift) + model.underflow / softmax.row_sum;
}

void bound_weights(Softmax& softmax, const Scores& scores, const ArithmeticModel& model) {
  const double u = model.unit_roundoff;
  const Rounding rounding = rounding_to(model.probabilities);
  for (std::size_t index = 0; index < scores.value.size(); ++index) {
    const double p = softmax.probability[index];
    const double common = common_error(softmax, scores.value[index], scores.error[index], p, model);
    const double weight = p + common;
    // Dropout rounds one over the probability of being kept, and the product with it.
    const double summation = gamma(softmax.terms + (scores.dropout[index] == 1.0 ? 0.0 : 2.0), u);
    softmax.common_error.push_back(common);
    double rounded = rounding.relative * weight + rounding.absolute / softmax.row_sum;
    if (!scores.rounding_log.empty())
      rounded += std::exp(scores.rounding_log[index] - softmax.maximum) / softmax.row_sum;
    softmax.numerator_error.push_back((summation + model.product_error) * weight + (1.0 + summation) * rounded);
    softmax.sum_error += common + softmax.summation * weight;
  }
  softmax.sum_error += softmax.sink_error + softmax.summation * (softmax.sink + softmax.sink_error);
}

Softmax softmax_of(const Scores& scores, double maximum, const ArithmeticModel& model) {
  const double u = model.unit_roundoff;
  const double replaced = rescalings(scores, model);
  Softmax softmax;
  softmax.maximum = maximum;
  softmax.terms = static_cast<double>(scores.value.size()) + (scores.sink ? 1.0 : 0.0) + replaced;
  softmax.summation = gamma(softmax.terms, u);
  softmax.exponentials = (replaced + 1.0) * std::log1p(model.exp2_error);
  for (const double score : scores.value) {
    softmax.probability.push_back(std::exp(score - softmax.maximum));
    softmax.row_sum += softmax.probability.back();
  }
  if (scores.sink) softmax.sink = std::exp(*scores.sink - softmax.maximum);
  softmax.row_sum += softmax.sink;
  for (double& probability : softmax.probability) probability /= softmax.row_sum;
  softmax.sink /= softmax.row_sum;
  for (const double error : scores.error) softmax.largest_error = std::max(softmax.largest_error, error);
  if (scores.sink) {
    const double error = sink_error(*scores.sink, model);
    softmax.largest_error = std::max(softmax.largest_error, error);
    softmax.sink_error = common_error(softmax, *scores.sink, error, softmax.sink, model);
  }
  bound_weights(softmax, scores, model);
  return softmax;
}

double lse_bound(const Softmax& softmax, const ArithmeticModel& model) {
  if (!(softmax.sum_error < 1.0)) return kInfinity;
  const double sum_moved = -std::log1p(-softmax.sum_error);
  const double log_reach = std::log(softmax.row_sum) + softmax.largest_error + sum_moved + model.maximum_slack;
  // Roundings: ln(2) and the product with it, and the sum of maximum and logarithm.
  const double reach = std::fabs(softmax.maximum) + softmax.largest_error + model.maximum_slack + log_reach;
  const double log_error = model.log_error * log_reach + model.log_absolute_error;
  return sum_moved + log_error + gamma(3.0, model.unit_roundoff) * (reach + log_error);
}

// |O_computed - O| for O = N / 1 and the computed (N + e) / (1 + f): (|e - O f|) / (1 - |f|), where what numerator and
// row sum share enters by |v - O| alone; dropout takes part as a factor of v, the sink as a key whose v is 0.
void bound_output(ForwardRow& row, const Softmax& softmax, const Scores& scores, const double* v, DType output,
                  const ArithmeticModel& model) {
  const std::size_t head_dim_v = row.o.size();
  double weights = softmax.sink + softmax.sink_error;
  double largest_factor = 1.0;  // of dropout, which may multiply sums
  for (std::size_t index = 0; index < softmax.probability.size(); ++index) {
    const double common = softmax.common_error[index];
    const double factor = scores.dropout[index];
    largest_factor = std::max(largest_factor, factor);
    const double numerator = softmax.numerator_error[index] * factor;
    weights += softmax.probability[index] + common;
    const double* line = v + scores.keys[index] * head_dim_v;
    for (std::size_t column = 0; column < head_dim_v; ++column) {
      const double magnitude = std::fabs(line[column]);
      row.o_bound[column] += common * std::fabs(factor * line[column] - row.o[column]) + numerator * magnitude;
      if (magnitude < model.smallest_input) {
        row.o_bound[column] += factor * (softmax.probability[index] + common) * magnitude;
      }
    }
  }
  const double lost = static_cast<double>(softmax.probability.size()) * model.underflow * largest_factor;
  const double division = gamma(2.0, model.unit_roundoff);  // a reciprocal and a product
  for (std::size_t column = 0; column < head_dim_v; ++column) {
    const double magnitude = std::fabs(row.o[column]);
    const double sums = row.o_bound[column] + magnitude * (softmax.summation * weights + softmax.sink_error) + lost;
    const double quotient = softmax.sum_error < 1.0 ? sums / (1.0 - softmax.sum_error) : kInfinity;
    const double error = quotient + division * (magnitude + quotient) + model.underflow;
    row.o_bound[column] = rounding_to(output).stored_error(row.o[column], error);
  }
}

// O = P V where P is the scores: what they are wrong by, the sum's roundings, and those of dropout's division.
void sum_unnormalized(ForwardRow& row, const Scores& scores, const double* v, DType output,
                      const ArithmeticModel& model) {
  const std::size_t head_dim_v = row.o.size();
  // The sums of tiles are added up one after another: a rounding for each tile, as where they are rescaled.
  const double terms = static_cast<double>(scores.value.size()) + rescalings(scores, model) + 1.0;
  const double summation = gamma(terms, model.unit_roundoff) + model.product_error;
  double largest_factor = 1.0;
  for (std::size_t index = 0; index < scores.value.size(); ++index) {
    Bounded weight = score_weight(scores, index);
    weight.error = rounding_to(model.probabilities).stored_error(weight.value, weight.error);
    const double factor = scores.dropout[index];
    largest_factor = std::max(largest_factor, factor);
    const double reach = std::fabs(weight.value) + weight.error;
    const double error = factor * (weight.error + summation * reach);
    const double* line = v + scores.keys[index] * head_dim_v;
    for (std::size_t column = 0; column < head_dim_v; ++column) {
      row.o[column] += factor * weight.value * line[column];
      row.o_bound[column] += error * std::fabs(line[column]);
      if (std::fabs(line[column]) < model.smallest_input) {
        row.o_bound[column] += factor * reach * std::fabs(line[column]);
      }
    }
  }
  const double lost = terms * model.underflow * largest_factor;
  const double division = gamma(2.0, model.unit_roundoff);  // a reciprocal and a product
  for (std::size_t column = 0; column < head_dim_v; ++column) {
    const double error = row.o_bound[column] + lost;
    row.o_bound[column] = rounding_to(output).stored_error(
        row.o[column], error + division * (std::fabs(row.o[column]) + error) + model.underflow);
  }
}

// With the sink's; -inf where nothing has a weight.
double softmax_maximum(const Scores& scores) {
  const double of_keys = row_maximum(scores.value);
  return scores.sink ? row_maximum({of_keys, *scores.sink}) : of_keys;
}

}  // namespace

Bounded score_weight(const Scores& scores, std::size_t index) {
  if (scores.value[index] == -kInfinity) return {};  // no weight, exactly
  return {scores.value[index], scores.error[index]};
}

std::vector<Bounded> row_weights(const Scores& scores, const ArithmeticModel& model) {
  std::vector<Bounded> weights(scores.value.size());
  const double maximum = softmax_maximum(scores);
  if (maximum == -kInfinity) return weights;
  const Softmax softmax = softmax_of(scores, maximum, model);
  for (std::size_t index = 0; index < weights.size(); ++index) {
    const double p = softmax.probability[index];
    const double numerator = p + softmax.common_error[index] + softmax.numerator_error[index];
    const double reach = softmax.sum_error < 1.0 ? numerator / (1.0 - softmax.sum_error) : kInfinity;
    weights[index] = {p, reach - p};
  }
  return weights;
}

double sink_error(double sink, const ArithmeticModel& model) {
  return std::isfinite(sink) ? gamma(2.0, model.unit_roundoff) * std::fabs(sink) + model.underflow : 0.0;
}

ForwardRow forward_row(const Scores& scores, const std::vector<double>& v, std::int64_t head_dim_v, DType output,
                       const ArithmeticModel& model) {
  ForwardRow row;
  row.o.assign(head_dim_v, 0.0);
  row.o_bound.assign(head_dim_v, 0.0);
  row.lse = -kInfinity;
  if (!scores.normalized) {
    row.empty = row_maximum(scores.value) == -kInfinity;
    sum_unnormalized(row, scores, v.data(), output, model);
    return row;
  }
  const double maximum = softmax_maximum(scores);
  if (maximum == -kInfinity) return row;
  const Softmax softmax = softmax_of(scores, maximum, model);
  row.lse = softmax.maximum + std::log(softmax.row_sum);
  row.lse_bound = lse_bound(softmax, model);
  if (row_maximum(scores.value) == -kInfinity) return row;
  row.empty = false;
  for (std::size_t index = 0; index < softmax.probability.size(); ++index) {
    const double weight = softmax.probability[index] * scores.dropout[index];
    const double* line = v.data() + scores.keys[index] * head_dim_v;
    for (std::int64_t column = 0; column < head_dim_v; ++column) row.o[column] += weight * line[column];
  }
  bound_output(row, softmax, scores, v.data(), output, model);
  return row;
}

}  // namespace strobe::reference
