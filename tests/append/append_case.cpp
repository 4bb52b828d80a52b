// SPDX-License-Identifier: Apache-2.0
#include "append_case.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numeric>
#include <utility>

namespace strobe::test {
namespace {

constexpr std::int64_t kPositions = 64;

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
  s.row_scales = stored(s.cache) && random.chance(0.5);
  return s;
}

std::string AppendShape::text() const {
  std::string text;
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, std::int64_t>>{{"batch", batch},
                                                                   {"heads_kv", heads_kv},
                                                                   {"head_dim", head_dim},
                                                                   {"head_dim_v", head_dim_v},
                                                                   {"page_size", page_size},
                                                                   {"most_new", most_new},
                                                                   {"rotary_dim", rotary_dim},
                                                                   {"packed", packed},
                                                                   {"leftpad", leftpad},
                                                                   {"interleaved", interleaved},
                                                                   {"positions", positions},
                                                                   {"row_scales", row_scales}}) {
    text += std::string(name) + " " + std::to_string(value) + ", ";
  }
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
  if (shape.row_scales) {
    const std::int64_t entries = k_cache.view().shape[0];
    for (GuardedTensor* const scales : {&k_row_descale, &v_row_descale}) {
      *scales = GuardedTensor(DType::float32, {entries, shape.heads_kv, rows_per_entry()}, placement, random);
    }
    k_scales_before_ = k_row_descale.element_bytes();
    v_scales_before_ = v_row_descale.element_bytes();
  } else if (stored(shape.cache)) {
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
  a.k_row_descale = place(k_row_descale);
  a.v_row_descale = place(v_row_descale);
  return a;
}

std::vector<GuardedTensor*> AppendCase::outputs() {
  std::vector<GuardedTensor*> outputs{&k_cache, &v_cache, &q_out, &k_row_descale, &v_row_descale};
  std::erase_if(outputs, [](const GuardedTensor* tensor) { return !tensor->view().given(); });
  return outputs;
}

std::vector<std::byte> AppendCase::output_bytes() const {
  std::vector<std::byte> bytes = k_cache.element_bytes();
  for (const GuardedTensor* const tensor : {&v_cache, &q_out, &k_row_descale, &v_row_descale}) {
    const std::vector<std::byte> more = tensor->element_bytes();
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
  return bytes;
}

}  // namespace strobe::test
