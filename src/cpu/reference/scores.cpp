#include "cpu/reference/scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/reference/rounding.h"

namespace strobe::reference {
namespace {

// Roundings of a score besides the head_dim of its dot product: the default scale's root and quotient, its product with
// log2(e) and that constant itself, and the product with the scale.
constexpr double kScaleRoundings = 5.0;

// The largest sum of magnitudes that cannot overflow float32 on the way to a score.
constexpr double kLargestSum = 0x1p127;

double score_error(double value, double magnitude, double scale, double dimensions, const ArithmeticModel& model) {
  if (!std::isfinite(value)) return 0.0;  // an infinite sum is infinite in float32 too, whatever is rounded on the way
  if (magnitude * std::max(1.0, 2.0 * std::fabs(scale)) > kLargestSum) return std::numeric_limits<double>::infinity();
  const double relative = gamma(dimensions + kScaleRoundings, model.unit_roundoff);
  return std::fabs(scale) * (relative * magnitude + dimensions * model.underflow);
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
  const double capped_error = moved + model.tanh_error * (std::fabs(capped) + moved) + model.underflow;
  scores.value[index] = softcap * capped;
  // Roundings: the product with softcap, with log2(e), and that constant.
  scores.error[index] = softcap * (capped_error + gamma(3.0, u) * (std::fabs(capped) + capped_error));
  scores.slope[index] = 1.0 - capped * capped;
  scores.slope_error[index] = capped_error * (2.0 * std::fabs(capped) + capped_error) + 2.0 * u;
}

}  // namespace

KeyRange visible_keys(std::int64_t query, const SequenceRows& rows, const AttentionOptions& options) {
  const bool top_left = options.causal == CausalMask::top_left;
  const std::int64_t center = query + (top_left ? 0 : rows.seqlen_k - rows.seqlen_q);
  const std::int64_t everything = rows.seqlen_q + rows.seqlen_k;  // no window needs to reach further
  KeyRange keys{0, rows.seqlen_k};
  if (options.causal != CausalMask::none) keys.end = std::min(keys.end, center + 1);
  if (options.window.right >= 0) keys.end = std::min(keys.end, center + std::min(options.window.right, everything) + 1);
  if (options.window.left >= 0) keys.begin = std::max(keys.begin, center - std::min(options.window.left, everything));
  return keys;
}

double scale_of(const AttentionOptions& options, std::int64_t head_dim) {
  return options.scale ? static_cast<double>(*options.scale) : 1.0 / std::sqrt(static_cast<double>(head_dim));
}

void multiply_row(const double* row, const std::vector<double>& transposed, std::int64_t columns, KeyRange keys,
                  std::int64_t seqlen_k, std::vector<double>& products, std::vector<double>& magnitudes) {
  const std::int64_t count = keys.size();
  products.assign(count, 0.0);
  magnitudes.assign(count, 0.0);
  for (std::int64_t column = 0; column < columns; ++column) {
    const double factor = row[column];
    const double* line = transposed.data() + column * seqlen_k + keys.begin;
    for (std::int64_t key = 0; key < count; ++key) {
      const double product = factor * line[key];
      products[key] += product;
      magnitudes[key] += std::fabs(product);
    }
  }
}

Scores scores_of(const double* q, const std::vector<double>& k_transposed, std::int64_t head_dim, KeyRange keys,
                 std::int64_t seqlen_k, const AttentionOptions& options, const ArithmeticModel& model) {
  Scores scores;
  scores.keys = keys;
  multiply_row(q, k_transposed, head_dim, keys, seqlen_k, scores.value, scores.error);
  scores.slope.assign(scores.value.size(), 1.0);
  scores.slope_error.assign(scores.value.size(), 0.0);
  const double scale = scale_of(options, head_dim);
  const double dimensions = static_cast<double>(head_dim);
  for (std::size_t index = 0; index < scores.value.size(); ++index) {
    const double magnitude = scores.error[index];
    scores.value[index] *= scale;
    scores.error[index] = score_error(scores.value[index], magnitude, scale, dimensions, model);
    if (options.softcap > 0.0F) apply_softcap(scores, index, static_cast<double>(options.softcap), model);
  }
  return scores;
}

}  // namespace strobe::reference
