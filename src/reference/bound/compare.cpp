// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdio>
#include <limits>

#include "reference/bound/reference.h"
#include "reference/tensors.h"

namespace strobe::reference {
namespace {

double ratio_of(double actual, double expected, double bound) {
  constexpr double kWrong = std::numeric_limits<double>::infinity();
  if (std::isnan(expected)) return std::isnan(actual) ? 0.0 : kWrong;
  if (actual == expected) return 0.0;
  if (std::isinf(expected) || std::isnan(actual)) return kWrong;
  if (std::isinf(bound)) return 0.0;
  return bound > 0.0 ? std::fabs(actual - expected) / bound : kWrong;
}

}  // namespace

WorstElement worst_element(const ConstTensorView& actual, const BoundedTensor& expected) {
  const std::vector<double> values = elements(actual);
  WorstElement worst;
  for (std::size_t index = 0; index < values.size(); ++index) {
    const double ratio = ratio_of(values[index], expected.value[index], expected.bound[index]);
    if (worst.index >= 0 && ratio <= worst.ratio) continue;
    worst = {ratio, static_cast<std::int64_t>(index), values[index], expected.value[index], expected.bound[index]};
  }
  return worst;
}

std::string describe(const WorstElement& worst, const ConstTensorView& actual) {
  if (worst.index < 0) return "no element";
  std::string position;
  std::int64_t rest = worst.index;
  for (int axis = actual.rank - 1; axis >= 0; --axis) {
    position = std::to_string(rest % actual.shape[axis]) + (position.empty() ? "" : ", ") + position;
    rest /= actual.shape[axis];
  }
  char numbers[160];
  std::snprintf(numbers, sizeof numbers, "is %.9g, expected %.9g within %.3g (ratio %.3g)", worst.actual,
                worst.expected, worst.bound, worst.ratio);
  return "element [" + position + "] " + numbers;
}

double root_mean_square_error(const ConstTensorView& actual, const BoundedTensor& expected) {
  const std::vector<double> values = elements(actual);
  double sum = 0.0;
  for (std::size_t index = 0; index < values.size(); ++index) {
    const double difference = values[index] - expected.value[index];
    sum += difference * difference;
  }
  return values.empty() ? 0.0 : std::sqrt(sum / static_cast<double>(values.size()));
}

}  // namespace strobe::reference
