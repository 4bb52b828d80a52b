// SPDX-License-Identifier: Apache-2.0
#include "api/error_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "call/arithmetic.h"
#include "call/eight_bit.h"
#include "call/visible_keys.h"
#include "strobe/float16.h"

namespace strobe::api {
namespace {

constexpr std::int64_t kMostSamples = 256;
constexpr std::int64_t kSumDepth = 32;     // keys, or columns, of one 8-bit multiply-accumulate of the tensor cores
constexpr double kSumPrecision = 0x1p-13;  // of e4m3's, which keep 14 bits

bool is_integer(const QuantizeOptions& options) { return options.element == DType::int8; }

/// Relative rounding noise of O's dtype: that of e4m3, with more bits.
double output_noise(DType output) {
  if (output == DType::float32) return 0.0;
  return kFloat8Noise * (output == DType::bfloat16 ? 0x1p-4 : 0x1p-7);
}

float element_at(const ConstTensorView& tensor, std::int64_t at) {
  if (tensor.dtype == DType::float16) return to_float(static_cast<const float16*>(tensor.data)[at]);
  if (tensor.dtype == DType::bfloat16) return to_float(static_cast<const bfloat16*>(tensor.data)[at]);
  return static_cast<const float*>(tensor.data)[at];
}

double largest_magnitude(std::span<const float> row) {
  float largest = 0.0F;
  for (const float x : row) largest = std::max(largest, std::fabs(x));
  return static_cast<double>(largest);
}

/// Rows of one head, less `mean` where that is not empty, rotated.
HeadRows read_rows(const ConstTensorView& tensor, std::int64_t batch, std::int64_t head, const std::vector<float>& mean,
                   std::uint64_t seed) {
  HeadRows rows{.count = tensor.shape[1],
                .columns = tensor.shape[3],
                .elements = {},
                .square = {},
                .largest = {},
                .largest_unrotated = {}};
  rows.elements.resize(static_cast<std::size_t>(rows.count * rows.columns));
  for (std::int64_t i = 0; i < rows.count; ++i) {
    float* const row = rows.elements.data() + i * rows.columns;
    const std::int64_t at = batch * tensor.strides[0] + i * tensor.strides[1] + head * tensor.strides[2];
    for (std::int64_t c = 0; c < rows.columns; ++c) {
      row[c] = element_at(tensor, at + c) - (mean.empty() ? 0.0F : mean[static_cast<std::size_t>(c)]);
    }
    rows.largest_unrotated.push_back(largest_magnitude({row, static_cast<std::size_t>(rows.columns)}));
    rotate(seed, row, rows.columns);
    double square = 0.0;
    for (std::int64_t c = 0; c < rows.columns; ++c) square += static_cast<double>(row[c]) * static_cast<double>(row[c]);
    rows.square.push_back(square);
    rows.largest.push_back(largest_magnitude({row, static_cast<std::size_t>(rows.columns)}));
  }
  return rows;
}

std::vector<float> mean_of(const ConstTensorView& tensor, std::int64_t batch, std::int64_t head) {
  std::vector<float> mean(static_cast<std::size_t>(tensor.shape[3]), 0.0F);
  for (std::int64_t c = 0; c < tensor.shape[3]; ++c) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < tensor.shape[1]; ++i) {
      sum += static_cast<double>(
          element_at(tensor, batch * tensor.strides[0] + i * tensor.strides[1] + head * tensor.strides[2] + c));
    }
    mean[static_cast<std::size_t>(c)] = static_cast<float>(sum / static_cast<double>(tensor.shape[1]));
  }
  return mean;
}

double largest_of(const std::vector<double>& values) {
  return values.empty() ? 0.0 : *std::max_element(values.begin(), values.end());
}

/// What rounding does to the rows of a head.
struct RoundedRows {
  std::vector<double> scale;     // of each row
  std::vector<double> variance;  // of the error of one of its elements
  double most = 0.0;             // norm of any row's errors, at most
};

RoundedRows rounded(const HeadRows& rows, ScaleUnit unit, DType element, bool rotated) {
  RoundedRows to;
  const std::vector<double>& largest = rotated ? rows.largest : rows.largest_unrotated;
  const std::int64_t together = rows_per_scale(unit, rows.count);
  const auto columns = static_cast<double>(rows.columns);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const auto first = largest.begin() + round_down(i, together);
    const auto last = largest.end() - first > together ? first + together : largest.end();
    const double scale = *std::max_element(first, last) / static_cast<double>(largest_element(element));
    const double square = rows.square[static_cast<std::size_t>(i)];
    to.scale.push_back(std::max(scale, static_cast<double>(kSmallestScale)));
    if (element == DType::int8) {
      to.variance.push_back(scale * scale / 12.0);
      to.most = std::max(to.most, std::sqrt(columns) * scale / 2.0);
    } else {
      to.variance.push_back(kFloat8Noise * kFloat8Noise * square / columns);
      to.most = std::max(to.most, std::sqrt(square) * 0x1p-4 + std::sqrt(columns) * scale * 0x1p-10);
    }
  }
  return to;
}

/// One head's K and V, and what a candidate makes of them.
struct Keys {
  HeadRows k, v;
  std::vector<float> mean;  // of the keys, rotated
  double largest_value = 0.0;
};

struct RoundedKeys {
  RoundedRows k, v;
};

/// The exact softmax of one query.
struct Row {
  std::int64_t first = 0;     // visible key
  std::vector<double> p;      // of the keys from there on
  std::vector<double> slope;  // of the softcap
  std::vector<double> o;      // rotated
};

Row exact_row(const AttentionProblem& problem, const Keys& keys, std::span<const float> q, std::int64_t position) {
  const VisibleKeys visible = visible_keys(problem);
  Row row;
  row.first = visible.begin(position);
  const auto product = [&](std::span<const float> k) {
    double sum = 0.0;
    for (std::size_t c = 0; c < q.size(); ++c) sum += static_cast<double>(q[c]) * static_cast<double>(k[c]);
    return sum;
  };
  const double shift = product(keys.mean);
  const auto cap = static_cast<double>(problem.softcap);
  double top = -std::numeric_limits<double>::infinity();
  for (std::int64_t j = row.first; j < visible.end(position); ++j) {
    double score = static_cast<double>(problem.scale) * (product(keys.k.row(j)) + shift);
    double slope = 1.0;
    if (cap > 0.0) {
      const double t = std::tanh(score / cap);
      score = cap * t;
      slope = 1.0 - t * t;
    }
    row.p.push_back(score);
    row.slope.push_back(slope);
    top = std::max(top, score);
  }
  double sum = 0.0;
  for (double& p : row.p) sum += p = std::exp(p - top);
  row.o.assign(static_cast<std::size_t>(keys.v.columns), 0.0);
  for (std::size_t j = 0; j < row.p.size(); ++j) {
    row.p[j] /= sum;
    const std::span<const float> v = keys.v.row(row.first + static_cast<std::int64_t>(j));
    for (std::size_t c = 0; c < v.size(); ++c) row.o[c] += row.p[j] * static_cast<double>(v[c]);
  }
  return row;
}

double square_of(const std::vector<double>& o) {
  double sum = 0.0;
  for (const double x : o) sum += x * x;
  return sum;
}

/// The square of what rounding P to 8 unsigned bits adds to a row, summed over its columns. What is less than half a
/// level is lost, of which the values may add up.
double integer_noise(const Row& row, const Keys& keys, const RoundedRows& v) {
  double sum = 0.0;
  std::vector<double> lost(static_cast<std::size_t>(keys.v.columns), 0.0);
  const std::int64_t end = row.first + static_cast<std::int64_t>(row.p.size());
  const auto weight = [&](std::int64_t j) { return row.p[static_cast<std::size_t>(j - row.first)]; };
  for (std::int64_t block = round_down(row.first, kProbabilityKeys); block < end; block += kProbabilityKeys) {
    const std::int64_t block_end = std::min(block + kProbabilityKeys, keys.v.count);
    const std::int64_t first = std::max(block, row.first);
    const std::int64_t last = std::min(block_end, end);
    const auto [least, largest] = std::minmax_element(v.scale.begin() + block, v.scale.begin() + block_end);
    const bool close = *largest <= static_cast<double>(kCloseScales) * *least;
    double reference = 0.0;
    for (std::int64_t j = first; j < last; ++j) {
      reference = std::max(reference, weight(j) * (close ? *largest : v.scale[static_cast<std::size_t>(j)]));
    }
    const double level = reference / static_cast<double>(probability_levels(DType::int8));
    for (std::int64_t j = first; j < last && level > 0.0; ++j) {
      const double scale = v.scale[static_cast<std::size_t>(j)];
      if (weight(j) * scale >= 0.5 * level) {
        sum += level * level / 12.0 * keys.v.square[static_cast<std::size_t>(j)] / (scale * scale);
        continue;
      }
      const std::span<const float> v_row = keys.v.row(j);
      for (std::size_t c = 0; c < v_row.size(); ++c) lost[c] += weight(j) * static_cast<double>(v_row[c]);
    }
  }
  return sum + square_of(lost);
}

/// The mean over its columns of the square that O's row is off by.
double row_error(const AttentionProblem& problem, const Keys& keys, const Row& row, double q_square, double q_variance,
                 const QuantizeOptions& options, const RoundedKeys& noise) {
  const double tau = static_cast<double>(problem.scale);
  const auto columns = static_cast<double>(keys.v.columns);
  const double o_square = square_of(row.o);
  double sum = 0.0;
  for (std::size_t n = 0; n < row.p.size(); ++n) {
    const auto j = static_cast<std::size_t>(row.first) + n;
    double apart = 0.0;  // |v - o|^2
    const std::span<const float> v = keys.v.row(static_cast<std::int64_t>(j));
    for (std::size_t c = 0; c < v.size(); ++c) {
      const double distance = static_cast<double>(v[c]) - row.o[c];
      apart += distance * distance;
    }
    const double of_score =
        tau * tau * row.slope[n] * row.slope[n] * (q_variance * keys.k.square[j] + noise.k.variance[j] * q_square);
    double of_value = noise.v.variance[j] * columns;
    if (!is_integer(options)) of_value += kFloat8Noise * kFloat8Noise * keys.v.square[j];  // P, in e4m3
    sum += row.p[n] * row.p[n] * (of_score * apart + of_value);
  }
  if (is_integer(options)) {
    sum += integer_noise(row, keys, noise.v);
  } else {
    const auto terms = static_cast<double>(std::min<std::int64_t>(keys_per_sum(options.element), keys.v.count));
    const double lost = terms / kSumDepth * kSumPrecision / 4.0;  // half a step, of sums half as large as they become
    sum += lost * lost * o_square;
  }
  const double stored = output_noise(output_dtype(problem));
  return (sum + stored * stored * o_square) / columns;
}

/// The bound on every element of one query head.
double bound_of(const AttentionProblem& problem, const Keys& keys, const HeadRows& q, const RoundedRows& q_noise,
                const QuantizeOptions& options, const RoundedKeys& noise) {
  const double tau = std::fabs(static_cast<double>(problem.scale));
  const double q_norm = std::sqrt(largest_of(q.square));
  const double k_norm = std::sqrt(largest_of(keys.k.square));
  const double v_norm = std::sqrt(largest_of(keys.v.square));
  const auto count = static_cast<double>(keys.v.count);
  const auto columns = static_cast<double>(keys.v.columns);
  // Scores: operands, and float32 or the tensor cores' sums.
  double arithmetic = 0x1p-20;
  if (!is_integer(options)) arithmetic += static_cast<double>(ceil_div(q.columns, kSumDepth)) * kSumPrecision;
  const double score = tau * (q_noise.most * k_norm + q_norm * noise.k.most + q_noise.most * noise.k.most +
                              arithmetic * q_norm * k_norm);
  // Probabilities: what their rounding weighs values with, in multiples of the row's largest in a block, all of which
  // add up to 1 at most.
  double rounding = 0.0;
  if (is_integer(options)) {
    for (std::int64_t block = 0; block < keys.v.count; block += kProbabilityKeys) {
      double largest = 0.0;
      double norm = 0.0;
      for (std::int64_t j = block; j < std::min(block + kProbabilityKeys, keys.v.count); ++j) {
        const double scale = noise.v.scale[static_cast<std::size_t>(j)];
        largest = std::max(largest, scale);
        norm = std::max(norm, std::sqrt(keys.v.square[static_cast<std::size_t>(j)]) / scale + std::sqrt(columns) / 2.0);
      }
      rounding = std::max(rounding, kProbabilityKeys / (2.0 * kInt8Levels) * largest * norm);
    }
  } else {
    const double scale = largest_of(noise.v.scale);
    const double norm = scale * static_cast<double>(largest_element(options.element)) * std::sqrt(columns);
    rounding = 0x1p-4 * v_norm + std::min(1.0, count * 0x1p-14) * norm;
    rounding += static_cast<double>(keys_per_sum(options.element)) / kSumDepth * kSumPrecision * v_norm;
  }
  const double sums = (count + 512.0) * 0x1p-24 * v_norm;
  const double exact = 2.0 * std::tanh(score / 2.0) * keys.largest_value + noise.v.most + rounding + sums;
  const double stored = output_dtype(problem) == DType::float32    ? 0.0
                        : output_dtype(problem) == DType::bfloat16 ? 0x1p-8
                                                                   : 0x1p-11;
  return exact + stored * (keys.largest_value + exact);
}

Keys read_keys(const ConstTensorView& k, const ConstTensorView& v, std::int64_t batch, std::int64_t head,
               std::uint64_t seed) {
  Keys keys;
  keys.mean = mean_of(k, batch, head);
  keys.k = read_rows(k, batch, head, keys.mean, seed);
  keys.v = read_rows(v, batch, head, {}, seed);
  rotate(seed, keys.mean.data(), k.shape[3]);
  for (std::int64_t i = 0; i < keys.v.count; ++i) {
    for (std::int64_t c = 0; c < keys.v.columns; ++c) {
      const float x = element_at(v, batch * v.strides[0] + i * v.strides[1] + head * v.strides[2] + c);
      keys.largest_value = std::max(keys.largest_value, std::fabs(static_cast<double>(x)));
    }
  }
  return keys;
}

/// The means over rows of the sum of squared probabilities, of normal scores of that deviation.
double mean_concentration(const AttentionProblem& problem, double deviation) {
  constexpr std::int64_t kRows = 64;  // evenly spread
  const VisibleKeys visible = visible_keys(problem);
  double sum = 0.0;
  for (std::int64_t i = 0; i < kRows; ++i) {
    const std::int64_t position = (2 * i + 1) * problem.seqlen_q / (2 * kRows);
    const std::int64_t seen = std::max<std::int64_t>(visible.end(position) - visible.begin(position), 1);
    sum += std::min(1.0, std::exp(deviation * deviation) / static_cast<double>(seen));
  }
  return sum / kRows;
}

/// What the largest of `count` normal magnitudes is like. Source: Cramer, "Mathematical Methods of Statistics" (1946),
/// section 28.6.
double largest_normal(double count) {
  const double root = std::sqrt(2.0 * std::log(2.0 * std::max(count, 2.0)));
  return root - (2.0 * std::log(root) + std::log(2.0 * 3.14159265358979)) / (2.0 * root);
}

/// Noise relative to the elements.
double normal_noise(ScaleUnit unit, DType element, std::int64_t seqlen, std::int64_t columns) {
  if (element != DType::int8) return kFloat8Noise;
  const std::int64_t rows = std::min(rows_per_scale(unit, seqlen), seqlen);
  return largest_normal(static_cast<double>(rows * columns)) / (static_cast<double>(kLargestInt8) * std::sqrt(12.0));
}

}  // namespace

std::int64_t keys_per_sum(DType element) { return element == DType::int8 ? kProbabilityKeys : kFloat8SumKeys; }

void measure(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
             const AttentionProblem& problem, std::uint64_t seed, std::span<Candidate> candidates) {
  const std::int64_t heads = problem.batch * problem.heads_q;
  const std::int64_t group = problem.heads_q / problem.heads_kv;
  const std::int64_t samples = std::clamp<std::int64_t>(kMostSamples / heads, 1, problem.seqlen_q);
  for (std::int64_t index = 0; index < problem.batch * problem.heads_kv; ++index) {
    const std::int64_t b = index / problem.heads_kv;
    const std::int64_t head_kv = index % problem.heads_kv;
    const Keys keys = read_keys(k, v, b, head_kv, candidates[0].options.seed);
    std::vector<RoundedKeys> noise;
    for (const Candidate& candidate : candidates) {
      const QuantizeOptions& o = candidate.options;
      noise.push_back(
          {rounded(keys.k, o.k_scales, o.element, o.rotate_qk), rounded(keys.v, o.v_scales, o.element, o.rotate_v)});
    }
    for (std::int64_t h = head_kv * group; h < (head_kv + 1) * group; ++h) {
      const HeadRows queries = read_rows(q, b, h, {}, candidates[0].options.seed);
      std::vector<RoundedRows> q_noise;
      for (std::size_t c = 0; c < candidates.size(); ++c) {
        const QuantizeOptions& o = candidates[c].options;
        q_noise.push_back(rounded(queries, o.q_scales, o.element, o.rotate_qk));
        const double bound = bound_of(problem, keys, queries, q_noise[c], o, noise[c]);
        candidates[c].errors.bound = std::max(candidates[c].errors.bound, bound);
      }
      for (std::int64_t s = 0; s < samples; ++s) {
        // One of each of as many equal parts of the rows.
        const std::uint64_t random = rotation_signs(seed, 64 * ((b * problem.heads_q + h) * samples + s));
        const std::int64_t first = s * problem.seqlen_q / samples;
        const std::int64_t width = std::max<std::int64_t>((s + 1) * problem.seqlen_q / samples - first, 1);
        const std::int64_t i = first + static_cast<std::int64_t>(random % static_cast<std::uint64_t>(width));
        const Row row = exact_row(problem, keys, queries.row(i), i);
        for (std::size_t c = 0; c < candidates.size(); ++c) {
          const double error =
              row_error(problem, keys, row, queries.square[static_cast<std::size_t>(i)],
                        q_noise[c].variance[static_cast<std::size_t>(i)], candidates[c].options, noise[c]);
          candidates[c].errors.mean_square += error / static_cast<double>(heads * samples);
        }
      }
    }
  }
}

void assume_normal(const AttentionProblem& problem, std::span<Candidate> candidates) {
  const double deviation =
      std::fabs(static_cast<double>(problem.scale)) * std::sqrt(static_cast<double>(problem.head_dim));
  const double concentration = mean_concentration(problem, deviation);
  // 8 unsigned bits relative to the largest of 128 lognormal weights with scales of their own; e4m3 as elements.
  const double capped = std::min(deviation, 1.34);
  const double integers = 2.0 * std::exp(5.36 * capped - 2.0 * capped * capped) / (255.0 * 255.0 * 12.0);
  for (Candidate& candidate : candidates) {
    const QuantizeOptions& o = candidate.options;
    const double q = normal_noise(o.q_scales, o.element, problem.seqlen_q, problem.head_dim);
    const double k = normal_noise(o.k_scales, o.element, problem.seqlen_k, problem.head_dim);
    const double v = normal_noise(o.v_scales, o.element, problem.seqlen_k, problem.head_dim_v);
    const double p = is_integer(o) ? integers : kFloat8Noise * kFloat8Noise;
    const double stored = output_noise(output_dtype(problem));
    candidate.errors = {concentration * (deviation * deviation * (q * q + k * k) + v * v + p + stored * stored),
                        std::numeric_limits<double>::infinity()};
  }
}

}  // namespace strobe::api
