// SPDX-License-Identifier: Apache-2.0
#include "reference/bound/eight_bit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <span>

#include "call/eight_bit.h"
#include "reference/bound/rounding.h"

namespace strobe::reference {
namespace {

/// The scale of row `row` of a head; extents of 1 are every entry's.
double scale_at(const ConstTensorView& scales, std::int64_t batch, std::int64_t head, std::int64_t row,
                std::int64_t seqlen) {
  const auto& shape = scales.shape;
  const ScaleUnit units[] = {ScaleUnit::head, ScaleUnit::block, ScaleUnit::group, ScaleUnit::row};
  const ScaleUnit* const unit = std::ranges::find_if(units, [&](ScaleUnit u) {
    return shape[2] == std::max<std::int64_t>(ceil_div(seqlen, rows_per_scale(u, seqlen)), 1);
  });
  return load(scales, (shape[0] == 1 ? 0 : batch * scales.strides[0]) + (shape[1] == 1 ? 0 : head * scales.strides[1]) +
                          row / rows_per_scale(*unit, seqlen));
}

/// log2 of how far rounding to an operand moves a probability of `level` levels.
double rounding_of(double level, DType element) {
  return element == DType::int8 ? 0.5 : std::max(0x1p-4 * level, 0x1p-10);
}

/// What of V's scales the reference of a key's block holds: the block's largest where they are close, else the key's.
double reference_scale(const std::vector<double>& scales, std::int64_t key) {
  const auto first = scales.begin() + round_down(key, kProbabilityKeys);
  const auto last = scales.end() - first > kProbabilityKeys ? first + kProbabilityKeys : scales.end();
  const auto [least, largest] = std::minmax_element(first, last);
  return *largest <= static_cast<double>(kCloseScales) * *least ? *largest : scales[static_cast<std::size_t>(key)];
}

/// What scales' shapes count: the length of batched sequences, the bound of packed ones.
std::int64_t scaled_rows(const ConstTensorView& rows, const ConstTensorView& cu_seqlens, std::int64_t max_seqlen) {
  return QuantizedSide(rows, cu_seqlens, max_seqlen).seqlen;
}

/// Where column 0 of V has key 0.
std::int64_t first_value(const ForwardArguments& a, const SequenceRows& rows, std::int64_t head) {
  const auto& strides = a.v.strides;
  return a.sequences.cu_seqlens_k.given() ? head * strides[0] + packed_value_start(rows.first_k, rows.sequence)
                                          : rows.sequence * strides[0] + head * strides[1];
}

}  // namespace

HeadOperands eight_bit_operands(const ForwardArguments& a, const Head& head) {
  const SequenceRows& rows = head.rows;
  const std::int64_t b = rows.sequence;
  const std::int64_t h = head.modifiers.head();
  const std::int64_t head_kv = h / (heads_of(a.q) / heads_of(a.k));
  const std::int64_t d = head_dim_of(a.q);
  const std::int64_t dv = head_dim_of(a.o);
  const std::int64_t seqlen_q = scaled_rows(a.q, a.sequences.cu_seqlens_q, a.sequences.max_seqlen_q);
  const std::int64_t seqlen_k = scaled_rows(a.k, a.sequences.cu_seqlens_k, a.sequences.max_seqlen_k);
  const std::int64_t value_stride = a.v.strides[static_cast<std::size_t>(a.v.rank - 2)];
  const std::vector<double> q = read_head(a.q, rows.first_q, rows.seqlen_q, h);
  const std::vector<double> k = read_head(a.k, rows.first_k, rows.seqlen_k, head_kv);
  HeadOperands operands{.head_dim = d + 1, .q = {}, .k_transposed = {}, .v = {}, .value_scales = {}};
  for (std::int64_t i = 0; i < rows.seqlen_q; ++i) {
    const double scale = scale_at(a.q_descale, b, h, i, seqlen_q);
    for (std::int64_t c = 0; c < d; ++c) operands.q.push_back(q[i * d + c] * scale);
    operands.q.push_back(a.q_shift.given() ? load(a.q_shift, b * a.q_shift.strides[0] + h * a.q_shift.strides[1] + i)
                                           : 0.0);
  }
  std::vector<double> scaled;
  for (std::int64_t j = 0; j < rows.seqlen_k; ++j) {
    const double scale = scale_at(a.k_descale, b, head_kv, j, seqlen_k);
    for (std::int64_t c = 0; c < d; ++c) scaled.push_back(k[j * d + c] * scale);
    scaled.push_back(1.0);
    operands.value_scales.push_back(scale_at(a.v_descale, b, head_kv, j, seqlen_k));
    const std::int64_t at = first_value(a, rows, head_kv) + value_position(j);
    for (std::int64_t c = 0; c < dv; ++c) {
      operands.v.push_back(load(a.v, at + c * value_stride) * operands.value_scales.back());
    }
  }
  operands.k_transposed = transpose(scaled, rows.seqlen_k, d + 1);
  return operands;
}

std::vector<double> stored_rows(const ConstTensorView& view, const ConstTensorView& scales, const Head& head,
                                std::int64_t head_kv, DType dtype) {
  const SequenceRows& rows = head.rows;
  const std::int64_t columns = head_dim_of(view);
  const std::vector<double> scale_of_row = stored_scales(view, scales, head, head_kv);
  std::vector<double> values = read_head(view, rows.first_k, rows.seqlen_k, head_kv);
  for (std::int64_t row = 0; row < rows.seqlen_k; ++row) {
    const auto scale = static_cast<float>(scale_of_row[static_cast<std::size_t>(row)]);
    for (double& value :
         std::span(values).subspan(static_cast<std::size_t>(row * columns), static_cast<std::size_t>(columns))) {
      if (head.model.stored_operands) {
        value *= static_cast<double>(scale);
        continue;
      }
      const float product = static_cast<float>(value) * scale;
      value = static_cast<double>(dtype == DType::float16    ? to_float(to_float16(product))
                                  : dtype == DType::bfloat16 ? to_float(to_bfloat16(product))
                                                             : product);
    }
  }
  return values;
}

std::vector<double> stored_scales(const ConstTensorView& view, const ConstTensorView& scales, const Head& head,
                                  std::int64_t head_kv) {
  const std::int64_t seqlen = view.rank == 4 ? view.shape[1] : 1;  // packed rows share one scale
  std::vector<double> of_rows;
  for (std::int64_t row = 0; row < head.rows.seqlen_k; ++row) {
    of_rows.push_back(scale_at(scales, head.rows.sequence, head_kv, view.rank == 4 ? row : 0, seqlen));
  }
  return of_rows;
}

void round_small_probabilities(Scores& scores, const std::vector<double>& value_scales) {
  // Half of float16's least number, of probabilities that are 2^7 times as large as their row's maximum says; relative
  // to a power of two that is less than twice the largest scale.
  constexpr double kLost = 0x1p-25 * 0x1p-7 * 2.0;
  const auto largest_of = [](const std::vector<double>& numbers) {
    double largest = -kInfinity;
    for (const double number : numbers) largest = number > largest ? number : largest;
    return largest;
  };
  const double largest_score = largest_of(scores.value);
  const double largest_scale = largest_of(value_scales);
  for (const std::int64_t key : scores.keys) {
    const double scale = value_scales[static_cast<std::size_t>(key)];
    scores.rounding_log.push_back(scale > 0.0 ? largest_score + std::log(kLost * largest_scale / scale) : -kInfinity);
  }
}

void round_probabilities(Scores& scores, const HeadOperands& operands, DType element, const ArithmeticModel& model) {
  // Exponents with the V scale's logarithm, and the reference of each block of keys.
  std::map<std::int64_t, double> largest;
  std::vector<double> exponent(scores.value.size());
  for (std::size_t i = 0; i < exponent.size(); ++i) {
    exponent[i] = scores.value[i] + std::log(operands.value_scales[scores.keys[i]]);
    const double reference = scores.value[i] + std::log(reference_scale(operands.value_scales, scores.keys[i]));
    const auto [at, added] = largest.try_emplace(scores.keys[i] / kProbabilityKeys, reference);
    if (!added && !(reference <= at->second)) at->second = reference;
  }
  // e4m3: of the row.
  double of_row = -std::numeric_limits<double>::infinity();
  for (const auto& [block, reference] : largest) of_row = std::max(of_row, reference);
  scores.rounding_log.resize(exponent.size());
  const double levels = probability_levels(element);
  for (std::size_t i = 0; i < exponent.size(); ++i) {
    const double own = element == DType::int8 ? largest[scores.keys[i] / kProbabilityKeys] : of_row;
    const double value_log = std::log(operands.value_scales[scores.keys[i]]);
    // Roundings of an exponent: the products with both scales, the logarithm (2), its sum with the score, the
    // reference and the levels' logarithm; of the product of the probability and V's scale.
    const double reach = std::fabs(scores.value[i]) + std::fabs(value_log) + std::fabs(own) + std::log(levels) + 1.0;
    scores.error[i] += gamma(10.0, model.unit_roundoff) * reach;
    const double slack = 2.0 * scores.error[i] + 0x1p-20 * std::fabs(own);  // of the exponent and of the reference
    const double level = levels * std::exp(exponent[i] - own + slack);
    scores.rounding_log[i] = std::log(rounding_of(level, element) / levels) + own + slack - value_log;
  }
}

void rotate_back(ForwardRow& row, const Rotation& rotation, DType output, const ArithmeticModel& model) {
  const auto columns = static_cast<std::int64_t>(row.o.size());
  std::int64_t first = 0;
  while (first < columns) {
    const auto size = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(columns - first)));
    double moved = 0.0;
    double magnitude = 0.0;
    for (std::int64_t c = first; c < first + size; ++c) {
      moved += row.o_bound[c];
      magnitude += std::fabs(row.o[c]) + row.o_bound[c];
    }
    // Every element is a sum of all, over the root; log2(size) additions, and the root and its product.
    const double roundings = gamma(std::log2(static_cast<double>(size)) + 3.0, model.unit_roundoff);
    const double root = std::sqrt(static_cast<double>(size));
    for (std::int64_t c = first; c < first + size; ++c) row.o_bound[c] = (moved + roundings * magnitude) / root;
    first += size;
  }
  strobe::rotate_back(rotation.seed, row.o.data(), columns);
  const Rounding rounding = rounding_to(output);
  for (std::int64_t c = 0; c < columns; ++c) row.o_bound[c] = rounding.stored_error(row.o[c], row.o_bound[c]);
}

}  // namespace strobe::reference
