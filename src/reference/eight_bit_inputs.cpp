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

void round_to_float16(EightBitTensors& tensors) {
  for (std::vector<float>* tensor : {&tensors.q, &tensors.k, &tensors.v}) {
    for (float& number : *tensor) number = to_float(to_float16(number));
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
  round_to_float16(t);
  return t;
}

Needles make_needles(std::int64_t seqlen_k, std::int64_t queries, std::int64_t heads, std::int64_t head_dim,
                     std::uint64_t seed) {
  Random random(seed);
  const std::int64_t row = heads * head_dim;
  Needles needles{.seqlen_k = seqlen_k, .queries = queries, .tensors = {}, .key_of_query = {}};
  EightBitTensors& t = needles.tensors;
  t.q.resize(static_cast<std::size_t>(queries * row));
  t.k = normal_numbers(static_cast<std::size_t>(seqlen_k * row), random);
  t.v = normal_numbers(static_cast<std::size_t>(seqlen_k * row), random);
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t i = 0; i < queries; ++i) {
      const std::int64_t key = (2 * i + 1) * seqlen_k / (2 * queries);
      needles.key_of_query.push_back(key);
      const float* const k = t.k.data() + key * row + h * head_dim;
      double square = 0.0;
      for (std::int64_t c = 0; c < head_dim; ++c) square += static_cast<double>(k[c]) * static_cast<double>(k[c]);
      // The other scores are normal, of deviation |q| / sqrt(head_dim) = score / |k|.
      const auto log_others = [&](double score) {
        return std::log(static_cast<double>(seqlen_k)) + 0.5 * score * score / square;
      };
      double score = 0.0;
      for (int step = 0; step < 100; ++step) score = std::log(0.7 / 0.3) + log_others(score);
      const double factor = score * std::sqrt(static_cast<double>(head_dim)) / square;
      for (std::int64_t c = 0; c < head_dim; ++c) {
        t.q[static_cast<std::size_t>(i * row + h * head_dim + c)] =
            static_cast<float>(factor * static_cast<double>(k[c]));
      }
    }
  }
  round_to_float16(t);
  return needles;
}

std::int64_t needles_found(const Needles& needles, const float* o, std::int64_t heads, std::int64_t head_dim) {
  std::int64_t found = 0;
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t i = 0; i < needles.queries; ++i) {
      const std::int64_t key = needles.key_of_query[static_cast<std::size_t>(h * needles.queries + i)];
      const float* const v = needles.tensors.v.data() + (key * heads + h) * head_dim;
      double product = 0.0;
      double square = 0.0;
      for (std::int64_t c = 0; c < head_dim; ++c) {
        product += static_cast<double>(o[(i * heads + h) * head_dim + c]) * static_cast<double>(v[c]);
        square += static_cast<double>(v[c]) * static_cast<double>(v[c]);
      }
      if (product > 0.5 * square) ++found;
    }
  }
  return found;
}

}  // namespace strobe::reference
