// SPDX-License-Identifier: Apache-2.0
#include "append_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace strobe::test {
namespace {

constexpr std::int64_t kPositions = 64;

bool stored(DType dtype) { return dtype == DType::int8 || dtype == DType::float8_e4m3; }

GuardedTensor integers(const std::vector<std::int64_t>& values, const std::vector<std::int64_t>& shape,
                       const Placement& placement, Random& random) {
  GuardedTensor tensor(DType::int32, shape, placement, random);
  for (std::size_t i = 0; i < values.size(); ++i) {
    tensor.set(static_cast<std::int64_t>(i), static_cast<double>(values[i]));
  }
  return tensor;
}

std::vector<std::int64_t> cumulative(const std::vector<std::int64_t>& counts) {
  std::vector<std::int64_t> sums(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), sums.begin() + 1);
  return sums;
}

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

}  // namespace

AppendShape AppendShape::random(Random& random) {
  AppendShape s;
  s.batch = random.integer(1, 5);
  s.heads_kv = random.integer(1, 3);
  s.heads_q = s.heads_kv * random.integer(1, 3);
  s.head_dim = random.one_of<std::int64_t>({1, 2, 6, 16, 40, 64, 100, 128, 512, 576});
  s.head_dim_v =
      random.chance(0.5) ? std::min<std::int64_t>(s.head_dim, 512) : random.one_of<std::int64_t>({1, 8, 33, 64, 512});
  s.page_size = random.one_of<std::int64_t>({0, 0, 1, 3, 16});
  s.most_new = random.one_of<std::int64_t>({0, 1, 1, 5, 20});
  if (random.chance(0.7)) s.rotary_dim = 2 * random.integer(0, s.head_dim / 2);
  s.source = random.one_of({DType::float32, DType::float16, DType::bfloat16});
  s.cache = random.one_of(
      {s.source, s.source, DType::float32, DType::float16, DType::bfloat16, DType::int8, DType::float8_e4m3});
  s.table = random.one_of({DType::float32, s.source});
  s.packed = random.chance(0.5);
  s.leftpad = random.chance(0.4);
  s.batch_idx = s.page_size == 0 && random.chance(0.5);
  s.interleaved = random.chance(0.5);
  s.positions = random.chance(0.3);
  s.queries = random.chance(0.6);
  s.q_in_order = random.chance(0.5);
  s.scales_by_batch = random.chance(0.5);
  return s;
}

std::string AppendShape::text() const {
  std::string text;
  const auto add = [&](const char* name, std::int64_t value) {
    text += std::string(name) + " " + std::to_string(value) + ", ";
  };
  add("batch", batch);
  add("heads_kv", heads_kv);
  add("head_dim", head_dim);
  add("head_dim_v", head_dim_v);
  add("page_size", page_size);
  add("most_new", most_new);
  add("rotary_dim", rotary_dim);
  add("packed", packed ? 1 : 0);
  add("leftpad", leftpad ? 1 : 0);
  add("interleaved", interleaved ? 1 : 0);
  add("positions", positions ? 1 : 0);
  return text + name_of(source) + " to " + name_of(cache);
}

AppendCase::AppendCase(const AppendShape& shape, const Placement& placement, std::uint64_t seed) : shape_(shape) {
  Random random(seed);
  make_lengths(random);
  make_places(random, placement);
  const auto rows = [&](const std::vector<std::int64_t>& counts, std::int64_t heads, std::int64_t columns) {
    std::vector<std::int64_t> axes{heads, columns};
    if (shape.packed) {
      axes.insert(axes.begin(), std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
    } else {
      axes.insert(axes.begin(), {shape.batch, counts[0]});
    }
    return axes;
  };
  const auto positions = [&](const std::vector<std::int64_t>& counts) {
    std::vector<std::int64_t> axes = rows(counts, 1, 1);
    axes.resize(axes.size() - 2);
    std::vector<std::int64_t> values(static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), 0LL)));
    for (std::int64_t& value : values) value = random.integer(0, kPositions - 1);
    return integers(values, axes, placement, random);
  };
  k_new_ = GuardedTensor(shape.source, rows(counts_, shape.heads_kv, shape.head_dim), placement, random);
  v_new_ = GuardedTensor(shape.source, rows(counts_, shape.heads_kv, shape.head_dim_v), placement, random);
  fill(k_new_, random);
  fill(v_new_, random);
  if (shape.packed) cu_seqlens_new_ = integers(cumulative(counts_), {shape.batch + 1}, placement, random);
  if (shape.rotary_dim > 0) {
    cos_ = GuardedTensor(shape.table, {kPositions, shape.rotary_dim / 2}, placement, random);
    sin_ = GuardedTensor(shape.table, {kPositions, shape.rotary_dim / 2}, placement, random);
    for (std::int64_t i = 0; i < cos_.size(); ++i) {
      const double angle = 100.0 * random.uniform();
      cos_.set(i, std::cos(angle));
      sin_.set(i, std::sin(angle));
    }
    if (shape.positions) positions_ = positions(counts_);
    if (shape.queries) {
      q_ = GuardedTensor(shape.source, rows(counts_q_, shape.heads_q, shape.head_dim), placement, random);
      q_out = GuardedTensor(shape.source, rows(counts_q_, shape.heads_q, shape.head_dim), placement, random);
      fill(q_, random);
      if (shape.packed) cu_seqlens_q_ = integers(cumulative(counts_q_), {shape.batch + 1}, placement, random);
      if (shape.positions) positions_q_ = positions(counts_q_);
    }
  }
  if (stored(shape.cache)) {
    for (GuardedTensor* const descale : {&k_descale_, &v_descale_}) {
      *descale = GuardedTensor(
          DType::float32, {shape.scales_by_batch ? shape.batch : 1, descale == &k_descale_ ? shape.heads_kv : 1, 1},
          placement, random);
      for (std::int64_t i = 0; i < descale->size(); ++i) {
        descale->set(i, (0.5 + random.uniform()) * (shape.cache == DType::int8 ? 0.02 : 0.005));
      }
    }
  }
  k_before_ = k_cache.element_bytes();
  v_before_ = v_cache.element_bytes();
}

void AppendCase::make_lengths(Random& random) {
  const std::int64_t batched = random.integer(0, shape_.most_new);
  const std::int64_t batched_q = random.integer(0, 5);
  for (std::int64_t b = 0; b < shape_.batch; ++b) {
    counts_.push_back(shape_.packed ? random.integer(0, shape_.most_new) : batched);
    counts_q_.push_back(shape_.packed ? random.integer(0, 5) : batched_q);
    lengths_.push_back(random.chance(0.2) ? 0 : random.integer(0, shape_.capacity - counts_.back()));
    padding_.push_back(shape_.leftpad ? random.integer(0, lengths_.back()) : 0);
  }
}

void AppendCase::make_places(Random& random, const Placement& placement) {
  const bool paged = shape_.page_size > 0;
  const std::int64_t rows = paged ? shape_.page_size : shape_.capacity;
  const std::int64_t per_sequence = (shape_.capacity + rows - 1) / rows;
  const std::int64_t slots = paged || shape_.batch_idx ? shape_.batch * per_sequence + 3 : shape_.batch;
  std::vector<std::int64_t> order(static_cast<std::size_t>(slots));
  std::iota(order.begin(), order.end(), 0);
  if (paged || shape_.batch_idx) {
    for (std::size_t i = order.size() - 1; i > 0; --i) {
      std::swap(order[i], order[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(i)))]);
    }
  }
  k_cache = GuardedTensor(shape_.cache, {slots, rows, shape_.heads_kv, shape_.head_dim}, placement, random);
  v_cache = GuardedTensor(shape_.cache, {slots, rows, shape_.heads_kv, shape_.head_dim_v}, placement, random);
  std::vector<std::int64_t> flat;
  for (std::int64_t b = 0; b < shape_.batch; ++b) {
    entries_.push_back(order[static_cast<std::size_t>(b)]);
    pages_.emplace_back();
    for (std::int64_t i = 0; paged && i < per_sequence; ++i) {
      pages_.back().push_back(order[static_cast<std::size_t>(b * per_sequence + i)]);
      // Entries of rows that are not appended are not read.
      const bool used = (i + 1) * rows > lengths_[static_cast<std::size_t>(b)] &&
                        i * rows < lengths_[static_cast<std::size_t>(b)] + counts_[static_cast<std::size_t>(b)];
      flat.push_back(used ? pages_.back().back() : -1);
    }
  }
  if (paged) page_table_ = integers(flat, {shape_.batch, per_sequence}, placement, random);
  if (shape_.batch_idx) cache_batch_idx_ = integers(entries_, {shape_.batch}, placement, random);
  if (shape_.leftpad) leftpad_k_ = integers(padding_, {shape_.batch}, placement, random);
  cache_seqlens_ = integers(lengths_, {shape_.batch}, placement, random);
}

void AppendCase::fill(GuardedTensor& tensor, Random& random) const {
  for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, random.normal());
}

AppendArguments AppendCase::arguments(const std::function<TensorView(const GuardedTensor&)>& place) const {
  AppendArguments a;
  a.k_cache = place(k_cache);
  a.v_cache = place(v_cache);
  a.k_new = place(k_new_);
  a.v_new = place(v_new_);
  a.cu_seqlens_new = place(cu_seqlens_new_);
  a.cache_seqlens = place(cache_seqlens_);
  a.page_table = place(page_table_);
  a.leftpad_k = place(leftpad_k_);
  a.cache_batch_idx = place(cache_batch_idx_);
  a.cos = place(cos_);
  a.sin = place(sin_);
  a.interleaved = shape_.interleaved;
  a.positions = place(positions_);
  a.q = place(q_);
  a.q_out = place(q_out);
  a.cu_seqlens_q = place(cu_seqlens_q_);
  a.positions_q = place(positions_q_);
  a.q_in_order = shape_.q_in_order;
  a.k_descale = place(k_descale_);
  a.v_descale = place(v_descale_);
  return a;
}

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

void AppendCase::expect_cache(const GuardedTensor& cache, const std::vector<std::byte>& before,
                              const GuardedTensor& from, const GuardedTensor& descale, std::int64_t columns,
                              bool rotated) const {
  const std::size_t size = size_of(shape_.cache);
  const std::vector<std::byte> after = cache.element_bytes();
  std::vector<bool> appended(after.size() / size, false);
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
  for (std::size_t i = 0; i < appended.size(); ++i) {
    if (appended[i]) continue;
    ASSERT_EQ(std::memcmp(&before[i * size], &after[i * size], size), 0) << "element " << i << " is no new one";
  }
  EXPECT_TRUE(cache.guards_intact());
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
  expect_cache(k_cache, k_before_, k_new_, k_descale_, shape_.head_dim, true);
  expect_cache(v_cache, v_before_, v_new_, v_descale_, shape_.head_dim_v, false);
  if (q_.view().given()) expect_queries();
}

std::vector<std::byte> AppendCase::output_bytes() const {
  std::vector<std::byte> bytes = k_cache.element_bytes();
  for (const GuardedTensor* const tensor : {&v_cache, &q_out}) {
    const std::vector<std::byte> more = tensor->element_bytes();
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
  return bytes;
}

}  // namespace strobe::test
