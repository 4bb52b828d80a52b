// SPDX-License-Identifier: Apache-2.0
// What an append must have written, in float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "append_case.h"

namespace strobe::test {
namespace {

/// An element as a number: GuardedTensor gives the bits of 8-bit ones.
double value_of(const GuardedTensor& tensor, std::int64_t index) {
  const double element = tensor.get(index);
  const auto bits = static_cast<std::uint8_t>(stored(tensor.view().dtype) ? element : 0.0);
  switch (tensor.view().dtype) {
    case DType::int8: return static_cast<double>(static_cast<std::int8_t>(bits));
    case DType::float8_e4m3: return to_float(float8_e4m3{bits});
    default: return element;
  }
}

/// Half a unit in the last place of the dtype's numbers around `x`.
double half_unit(DType dtype, double x) {
  const double magnitude = std::abs(x);
  switch (dtype) {
    case DType::float16: return std::max(magnitude * 0x1p-11, 0x1p-25);
    case DType::bfloat16: return magnitude * 0x1p-8;
    case DType::float8_e4m3: return std::max(magnitude * 0x1p-4, 0x1p-10);
    case DType::int8: return 0.5;
    default: return magnitude * 0x1p-24;
  }
}

double limited(DType dtype, double x) {
  const double largest = dtype == DType::int8 ? 127.0 : 448.0;
  return stored(dtype) ? std::clamp(x, -largest, largest) : x;
}

/// Elements that no append wrote have the bytes that they had.
void expect_unchanged(const std::vector<bool>& written, const std::vector<std::byte>& before,
                      const GuardedTensor& tensor) {
  const std::vector<std::byte> after = tensor.element_bytes();
  ASSERT_EQ(before.size(), after.size());
  const std::size_t size = size_of(tensor.view().dtype);
  for (std::size_t i = 0; i < written.size(); ++i) {
    if (written[i]) continue;
    ASSERT_EQ(std::memcmp(&before[i * size], &after[i * size], size), 0) << "element " << i << " is no new one";
  }
  EXPECT_TRUE(tensor.guards_intact());
}

}  // namespace

std::vector<AppendCase::Row> AppendCase::rows_of(const std::vector<std::int64_t>& counts) const {
  std::vector<Row> rows;
  for (std::int64_t b = 0; b < shape_.batch; ++b) {
    for (std::int64_t i = 0; i < counts[static_cast<std::size_t>(b)]; ++i) rows.push_back({b, i});
  }
  return rows;
}

std::int64_t AppendCase::cache_row(std::int64_t sequence, std::int64_t row) const {
  const auto b = static_cast<std::size_t>(sequence);
  if (shape_.page_size == 0) return entries_[b] * shape_.capacity + row;
  return pages_[b][static_cast<std::size_t>(row / shape_.page_size)] * shape_.page_size + row % shape_.page_size;
}

double AppendCase::position(const GuardedTensor& given, const Row& row, std::int64_t flat, bool in_order) const {
  if (given.view().given()) return given.get(flat);
  const auto b = static_cast<std::size_t>(row.sequence);
  return static_cast<double>(lengths_[b] - padding_[b] + (in_order ? row.index : 0));
}

void AppendCase::rotate(const GuardedTensor& from, std::int64_t first, std::int64_t position,
                        std::vector<double>& wanted, std::vector<double>& slack) const {
  const std::int64_t pairs = shape_.rotary_dim / 2;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const std::int64_t at_a = shape_.interleaved ? 2 * i : i;
    const std::int64_t at_b = shape_.interleaved ? 2 * i + 1 : i + pairs;
    const double a = from.get(first + at_a);
    const double b = from.get(first + at_b);
    const double cos = cos_.get(position * pairs + i);
    const double sin = sin_.get(position * pairs + i);
    wanted[static_cast<std::size_t>(at_a)] = a * cos - b * sin;
    wanted[static_cast<std::size_t>(at_b)] = a * sin + b * cos;
    // Two products and their sum, each rounded to float32.
    slack[static_cast<std::size_t>(at_a)] = 0x1p-23 * (std::abs(a * cos) + std::abs(b * sin));
    slack[static_cast<std::size_t>(at_b)] = 0x1p-23 * (std::abs(a * sin) + std::abs(b * cos));
  }
}

/// The scale that a row has of its own: as its elements say in float64, and exactly so if they are not rotated.
double AppendCase::expect_row_scale(const Cached& cached, std::int64_t scale, const std::vector<double>& wanted,
                                    const std::vector<double>& slack) const {
  double largest = 0.0;
  double error = 0.0;
  for (std::size_t c = 0; c < wanted.size(); ++c) {
    largest = std::max(largest, std::abs(wanted[c]));
    error = std::max(error, slack[c]);
  }
  const double levels = shape_.cache == DType::int8 ? 127.0 : 448.0;
  const double got = cached.row_descale.get(scale);
  if (error == 0.0) {
    EXPECT_EQ(got, std::max(static_cast<float>(largest) / static_cast<float>(levels), 0x1p-80F));
  } else {
    EXPECT_NEAR(got, std::max(largest / levels, 0x1p-80), (error + 0x1p-23 * largest) / levels);
  }
  return got;
}

void AppendCase::expect_cache(const Cached& cached) const {
  const auto& [cache, from, descale, row_descale, before, scales_before, rotated] = cached;
  const std::int64_t columns = cache.view().shape[3];
  std::vector<bool> appended(static_cast<std::size_t>(cache.size()), false);
  std::vector<bool> scaled(static_cast<std::size_t>(row_descale.size()), false);
  std::int64_t flat = 0;
  for (const Row& row : rows_of(counts_)) {
    const std::int64_t to_row = cache_row(row.sequence, lengths_[static_cast<std::size_t>(row.sequence)] + row.index);
    for (std::int64_t head = 0; head < shape_.heads_kv; ++head) {
      const std::int64_t first = (flat * shape_.heads_kv + head) * columns;
      std::vector<double> wanted(static_cast<std::size_t>(columns));
      std::vector<double> slack(wanted.size(), 0.0);
      for (std::size_t c = 0; c < wanted.size(); ++c) wanted[c] = from.get(first + static_cast<std::int64_t>(c));
      if (rotated && shape_.rotary_dim > 0) {
        rotate(from, first, static_cast<std::int64_t>(position(positions_, row, flat, true)), wanted, slack);
      }
      double scale = 1.0;
      if (descale.view().given()) {
        const auto& s = descale.view().shape;
        scale = descale.get((s[0] > 1 ? row.sequence : 0) * s[1] + (s[1] > 1 ? head : 0));
      }
      if (shape_.row_scales) {
        const std::int64_t index =
            (to_row / rows_per_entry() * shape_.heads_kv + head) * rows_per_entry() + to_row % rows_per_entry();
        scaled[static_cast<std::size_t>(index)] = true;
        scale = expect_row_scale(cached, index, wanted, slack);
      }
      for (std::int64_t c = 0; c < columns; ++c) {
        const std::int64_t index = (to_row * shape_.heads_kv + head) * columns + c;
        appended[static_cast<std::size_t>(index)] = true;
        const double quotient = wanted[static_cast<std::size_t>(c)] / scale;
        const double error =
            slack[static_cast<std::size_t>(c)] / scale + (scale == 1.0 ? 0.0 : 0x1p-24 * std::abs(quotient));
        const double bound = half_unit(shape_.cache, std::abs(quotient) + error) + error;
        ASSERT_NEAR(value_of(cache, index), limited(shape_.cache, quotient), bound)
            << "sequence " << row.sequence << ", new row " << row.index << ", head " << head << ", column " << c;
      }
    }
    ++flat;
  }
  expect_unchanged(appended, before, cache);
  if (shape_.row_scales) expect_unchanged(scaled, scales_before, row_descale);
}

void AppendCase::expect_queries() const {
  std::int64_t flat = 0;
  for (const Row& row : rows_of(counts_q_)) {
    const auto at = static_cast<std::int64_t>(position(positions_q_, row, flat, shape_.q_in_order));
    for (std::int64_t head = 0; head < shape_.heads_q; ++head) {
      const std::int64_t first = (flat * shape_.heads_q + head) * shape_.head_dim;
      std::vector<double> wanted(static_cast<std::size_t>(shape_.head_dim));
      std::vector<double> slack(wanted.size(), 0.0);
      for (std::size_t c = 0; c < wanted.size(); ++c) wanted[c] = q_.get(first + static_cast<std::int64_t>(c));
      rotate(q_, first, at, wanted, slack);
      for (std::size_t c = 0; c < wanted.size(); ++c) {
        const double bound = half_unit(shape_.source, std::abs(wanted[c]) + slack[c]) + slack[c];
        ASSERT_NEAR(q_out.get(first + static_cast<std::int64_t>(c)), wanted[c], bound)
            << "sequence " << row.sequence << ", query " << row.index << ", head " << head << ", column " << c;
      }
    }
    ++flat;
  }
  EXPECT_TRUE(q_out.guards_intact());
}

void AppendCase::expect_appended() const {
  expect_cache({k_cache, k_new_, k_descale_, k_row_descale, k_before_, k_scales_before_, true});
  expect_cache({v_cache, v_new_, v_descale_, v_row_descale, v_before_, v_scales_before_, false});
  if (q_.view().given()) expect_queries();
}

}  // namespace strobe::test
