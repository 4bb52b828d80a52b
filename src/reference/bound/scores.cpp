// SPDX-License-Identifier: Apache-2.0
#include "reference/bound/scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/bound/rounding.h"

namespace strobe::reference {
namespace {

// Roundings of a score besides those of its dot product and of the scale: the scale's product with log2(e), that
// constant itself, and the product with the scale.
constexpr double kProductRoundings = 3.0;

// The largest sum of magnitudes that cannot overflow float32 on the way to a score.
constexpr double kLargestSum = 0x1p127;

/// `roundings`: of the dot product and of the scale.
double score_error(double value, double magnitude, double lost, double scale, double dimensions, double roundings,
                   const ArithmeticModel& model) {
  if (!std::isfinite(value)) return 0.0;  // an infinite sum is infinite in float32 too, whatever is rounded on the way
  if (magnitude * std::max(1.0, 2.0 * std::fabs(scale)) > kLargestSum) return std::numeric_limits<double>::infinity();
  const double relative = gamma(roundings + kProductRoundings, model.unit_roundoff) + model.product_error;
  return std::fabs(scale) * (relative * magnitude + lost + dimensions * model.underflow);
}

// s -> c tanh(s / c): the error grows by the slope's steepest value within reach, and by the operations' own roundings.
void apply_softcap(Scores& scores, std::size_t index, double softcap, const ArithmeticModel& model) {
  const double u = model.unit_roundoff;
  const double argument = scores.value[index] / softcap;
  const double reach = std::fabs(argument) + scores.error[index] / softcap;
  // The cap of an infinite score is exact.
  const double argument_error =
      std::isinf(argument) ? 0.0 : scores.error[index] / softcap + gamma(2.0, u) * reach + model.underflow;
  const double flattest = std::max(0.0, std::fabs(argument) - argument_error);
  const double steepest = 1.0 / (std::cosh(flattest) * std::cosh(flattest));
  const double capped = std::tanh(argument);
  const double moved = steepest * argument_error;
  const double capped_error =
      moved + model.tanh_error * (std::fabs(capped) + moved) + model.tanh_absolute_error + model.underflow;
  scores.value[index] = softcap * capped;
  // Roundings: the product with softcap, with log2(e), and that constant.
  scores.error[index] = softcap * (capped_error + gamma(3.0, u) * (std::fabs(capped) + capped_error));
  scores.slope[index] = 1.0 - capped * capped;
  scores.slope_error[index] = capped_error * (2.0 * std::fabs(capped) + capped_error) + 2.0 * u;
}

// s -> s - slope * distance + bias, in base 2: log2(e) is rounded, multiplied by the slope or the bias, and the slope
// by the distance; then every term meets the roundings of the additions.
void apply_modifiers(Scores& scores, std::size_t index, std::int64_t query, const Head& head) {
  const HeadModifiers& modifiers = head.modifiers;
  const std::int64_t key = scores.keys[index];
  const double distance = std::fabs(static_cast<double>(center_of(query, head.rows, head.options) - key));
  const double alibi = modifiers.has_alibi() ? modifiers.slope() * distance : 0.0;
  const double bias = modifiers.has_bias() ? modifiers.bias(query, key) : 0.0;
  const double additions = (modifiers.has_alibi() ? 1.0 : 0.0) + (modifiers.has_bias() ? 1.0 : 0.0);
  const double reach = std::fabs(scores.value[index]) + scores.error[index];
  scores.value[index] += bias - alibi;
  if (std::isinf(scores.error[index])) return;
  if (!std::isfinite(scores.value[index])) {
    scores.error[index] = 0.0;  // an infinite bias is infinite in base 2, too
    return;
  }
  if (reach + std::fabs(alibi) + std::fabs(bias) > kLargestSum) {
    scores.error[index] = std::numeric_limits<double>::infinity();
    return;
  }
  const double u = head.model.unit_roundoff;
  scores.error[index] += gamma(additions, u) * reach + gamma(additions + 3.0, u) * std::fabs(alibi) +
                         gamma(additions + 2.0, u) * std::fabs(bias) + (distance + 2.0) * head.model.underflow;
}

// s -> the text's. Its exponents are base 2, too: log2(e) and the product with it.
void apply_text(Scores& scores, std::size_t index, std::int64_t query, const Head& head) {
  const expression::Bounded given{scores.value[index], scores.error[index]};
  const TextScore text = head.modifiers.text().apply(query, scores.keys[index], given);
  scores.given.push_back(given);
  scores.text.push_back(text);
  scores.value[index] = text.value.value;
  const double reach = std::fabs(text.value.value) + text.value.error;
  scores.error[index] = std::isfinite(text.value.value)
                            ? text.value.error + gamma(2.0, head.model.unit_roundoff) * reach
                        : std::isinf(text.value.error) ? text.value.error
                                                       : 0.0;
}

// float16 numbers of a row of q, whose largest lies between 2^15 and 2^16, are off by 2^-25 at most where they are
// below the format's normal range.
void add_lost_queries(const double* q, const std::vector<double>& k_transposed, std::int64_t head_dim,
                      const std::vector<std::int64_t>& keys, const Head& head, std::vector<double>& lost) {
  constexpr double kLost = 0x1p-25 / 0x1p15;
  double largest = 0.0;
  for (std::int64_t column = 0; column < head_dim; ++column) largest = std::max(largest, std::fabs(q[column]));
  for (std::size_t index = 0; index < keys.size(); ++index) {
    double sum = 0.0;
    for (std::int64_t column = 0; column < head_dim; ++column) {
      sum += std::fabs(k_transposed[static_cast<std::size_t>(column * head.rows.seqlen_k + keys[index])]);
    }
    lost[index] += kLost * largest * sum;
  }
}

}  // namespace

double scale_of(const AttentionOptions& options, std::int64_t head_dim) {
  return options.scale ? static_cast<double>(*options.scale) : 1.0 / std::sqrt(static_cast<double>(head_dim));
}

double product_scale(const AttentionOptions& options, std::int64_t head_dim, std::int64_t keys) {
  const double scale = scale_of(options, head_dim);
  if (options.log_length == 0 || keys <= options.log_length) return scale;
  return scale * std::log(static_cast<double>(keys)) / std::log(static_cast<double>(options.log_length));
}

double product_scale_roundings(const AttentionOptions& options) {
  constexpr double kDefaultScale = 2.0;  // its root and quotient
  // The logarithm, with a relative error of 2^-22 on a GPU; the other one's inverse; two products.
  constexpr double kLogLength = 4.0 + 1.0 + 2.0;
  return kDefaultScale + (options.log_length > 0 ? kLogLength : 0.0);
}

void multiply_row(const double* row, const std::vector<double>& transposed, std::int64_t columns,
                  const std::vector<KeyRange>& ranges, std::int64_t seqlen_k, std::vector<double>& products,
                  std::vector<double>& magnitudes) {
  std::int64_t total = 0;
  for (const KeyRange& range : ranges) total += range.size();
  products.assign(total, 0.0);
  magnitudes.assign(total, 0.0);
  for (std::int64_t column = 0; column < columns; ++column) {
    const double factor = row[column];
    double* sum = products.data();
    double* magnitude = magnitudes.data();
    for (const KeyRange& range : ranges) {
      const double* line = transposed.data() + column * seqlen_k + range.begin;
      const std::int64_t count = range.size();
      for (std::int64_t key = 0; key < count; ++key) {
        const double product = factor * line[key];
        sum[key] += product;
        magnitude[key] += std::fabs(product);
      }
      sum += count;
      magnitude += count;
    }
  }
}

std::vector<double> lost_products(const double* row, const std::vector<double>& transposed, std::int64_t columns,
                                  const std::vector<KeyRange>& ranges, std::int64_t seqlen_k, double smallest) {
  std::int64_t total = 0;
  for (const KeyRange& range : ranges) total += range.size();
  std::vector<double> lost(total, 0.0);
  if (smallest == 0.0) return lost;
  for (std::int64_t column = 0; column < columns; ++column) {
    const double factor = std::fabs(row[column]);
    double* sum = lost.data();
    for (const KeyRange& range : ranges) {
      const double* line = transposed.data() + column * seqlen_k + range.begin;
      for (std::int64_t key = 0; key < range.size(); ++key) {
        if (std::min(factor, std::fabs(line[key])) < smallest) sum[key] += factor * std::fabs(line[key]);
      }
      sum += range.size();
    }
  }
  return lost;
}

Scores scores_of(std::int64_t query, const double* q, const std::vector<double>& k_transposed, std::int64_t head_dim,
                 const Head& head) {
  Scores scores;
  scores.ranges = visible_keys(query, head.rows, head.options, head.modifiers);
  scores.sink = head.modifiers.sink();
  scores.normalized = head.options.normalize == Normalization::softmax;
  multiply_row(q, k_transposed, head_dim, scores.ranges, head.rows.seqlen_k, scores.value, scores.error);
  const std::size_t count = scores.value.size();
  scores.keys.reserve(count);
  for (const KeyRange& range : scores.ranges) {
    for (std::int64_t key = range.begin; key < range.end; ++key) scores.keys.push_back(key);
  }
  scores.slope.assign(count, 1.0);
  scores.slope_error.assign(count, 0.0);
  scores.dropout.assign(count, 1.0);
  const double scale = product_scale(head.options, head_dim, head.rows.seqlen_k);
  const double dimensions = static_cast<double>(head_dim);
  const double roundings = dimensions + product_scale_roundings(head.options);
  scores.products = dimensions;
  std::vector<double> lost =
      lost_products(q, k_transposed, head_dim, scores.ranges, head.rows.seqlen_k, head.model.smallest_input);
  if (head.model.stored_operands) add_lost_queries(q, k_transposed, head_dim, scores.keys, head, lost);
  for (std::size_t index = 0; index < count; ++index) {
    const double magnitude = scores.error[index];
    scores.value[index] *= scale;
    scores.error[index] =
        score_error(scores.value[index], magnitude, lost[index], scale, dimensions, roundings, head.model);
    if (head.options.softcap > 0.0F) apply_softcap(scores, index, head.options.softcap, head.model);
    if (head.modifiers.has_alibi() || head.modifiers.has_bias()) apply_modifiers(scores, index, query, head);
    if (head.modifiers.text().has_score()) apply_text(scores, index, query, head);
    if (head.modifiers.has_dropout()) {
      scores.dropout[index] = head.modifiers.dropout_factor(query, scores.keys[index]);
    }
  }
  return scores;
}

}  // namespace strobe::reference
