// SPDX-License-Identifier: Apache-2.0
#include "reference/eight_bit_inputs.h"

#include <cmath>
#include <cstddef>
#include <numbers>
#include <random>

#include "strobe/float16.h"

namespace strobe::reference {
namespace {

/// Normal numbers that are the same with every standard library, by the method of Box and Muller.
class Random {
 public:
  explicit Random(std::uint64_t seed) : bits_(seed) {}

  double uniform() { return static_cast<double>(bits_() >> 11U) * 0x1p-53; }
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }

 private:
  std::mt19937_64 bits_;
};

std::vector<float> normal_numbers(std::size_t count, Random& random) {
  std::vector<float> numbers(count);
  for (float& number : numbers) number = static_cast<float>(random.normal());
  return numbers;
}

void add_outliers(std::vector<float>& to, Random& random) {
  for (float& number : to) {
    if (random.uniform() < 0.001) number += static_cast<float>(10.0 * random.normal());
  }
}

// What K's channels are biased by; those of Q and V by 0.3 of it.
double channel_bias(std::int64_t channel) {
  switch (channel) {
    case 3: return 10.0;
    case 40: return -8.0;
    case 50: return 12.0;
    case 60: return 9.0;
    default: return 0.0;
  }
}

}  // namespace

const char* name_of(EightBitInputs inputs) {
  switch (inputs) {
    case EightBitInputs::normal: return "normal";
    case EightBitInputs::outliers: return "outliers";
    case EightBitInputs::biased_channels: return "biased channels";
    case EightBitInputs::sink: return "sink";
    case EightBitInputs::peaked: return "peaked rows";
    case EightBitInputs::unequal_values: return "unequal values";
  }
  return "";
}

EightBitTensors make_eight_bit_inputs(EightBitInputs inputs, std::int64_t seqlen, std::int64_t heads,
                                      std::int64_t head_dim, std::uint64_t seed) {
  Random random(seed);
  const auto count = static_cast<std::size_t>(seqlen * heads * head_dim);
  const std::int64_t row = heads * head_dim;
  EightBitTensors t{normal_numbers(count, random), normal_numbers(count, random), normal_numbers(count, random)};
  switch (inputs) {
    case EightBitInputs::normal: break;
    case EightBitInputs::outliers:
      for (std::vector<float>* tensor : {&t.q, &t.k, &t.v}) add_outliers(*tensor, random);
      break;
    case EightBitInputs::biased_channels:
      for (std::size_t i = 0; i < count; ++i) {
        const double bias = channel_bias(static_cast<std::int64_t>(i) % head_dim);
        t.q[i] += static_cast<float>(0.3 * bias);
        t.k[i] += static_cast<float>(bias);
        t.v[i] += static_cast<float>(0.3 * bias);
      }
      break;
    case EightBitInputs::sink:
      for (std::size_t i = 0; i < count; ++i) t.q[i] += 0.5F * t.k[i % static_cast<std::size_t>(row)];
      for (std::int64_t i = 0; i < row; ++i) {
        t.k[i] *= 6.0F;
        t.v[i] *= 0.05F;
      }
      break;
    case EightBitInputs::peaked:
      for (std::size_t i = 0; i < count; ++i) {
        const float x = t.q[i];
        t.q[i] = 2.0F * x;
        t.k[i] = 2.0F * (x + 0.5F * t.k[i]);
      }
      break;
    case EightBitInputs::unequal_values:
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(count); i += head_dim) {
        const auto norm = static_cast<float>(std::fabs(random.normal()));
        for (std::int64_t c = 0; c < head_dim; ++c) t.v[i + c] *= norm;
      }
      break;
  }
  for (std::vector<float>* tensor : {&t.q, &t.k, &t.v}) {
    for (float& number : *tensor) number = to_float(to_float16(number));
  }
  return t;
}

}  // namespace strobe::reference
