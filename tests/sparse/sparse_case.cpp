// SPDX-License-Identifier: Apache-2.0
#include "sparse_case.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <tuple>

#include "random_format.h"
#include "reference/sparse.h"

namespace strobe::test {
namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

/// A source whose rows are such that V is `head_dim_v` columns, in some layout.
SourceShape random_source(Random& random, const SparseShape& shape) {
  SourceShape s;
  s.layout = random.one_of({KeyLayout::batched, KeyLayout::packed, KeyLayout::pages, KeyLayout::pool});
  s.dtype = random.one_of({DType::float32, DType::bfloat16, DType::float16});
  s.block_size = random.chance(0.3) ? random.one_of<std::int64_t>({16, 32, 64}) : 1;
  s.max_keys = random.one_of<std::int64_t>({1, 17, 90, 200});
  s.topk = random.one_of<std::int64_t>({0, 1, 5, 64, 65, 130});
  if (s.block_size > 1) s.topk = std::min<std::int64_t>(s.topk, 6);
  if (random.chance(0.05)) s.topk = 700;
  s.page_size = random.one_of<std::int64_t>({1, 5, 16});
  s.v_apart = shape.head_dim_v > shape.head_dim || random.chance(0.5);
  s.list_per_head = random.chance(0.4);
  s.lengths = random.chance(0.5);
  s.used = s.layout != KeyLayout::pool && random.chance(0.4);
  s.causal = s.layout != KeyLayout::pool && random.chance(0.3);
  return s;
}

void choose_formats(Random& random, SparseShape& shape) {
  if (random.chance(0.4)) {  // of a model
    shape.heads_kv = 1;
    const auto format = random.one_of({mla_bfloat16_rows(), deepseek_v32_rows(), deepseek_v4_rows(),
                                       deepseek_v41_rows(), deepseek_v41_four_bit_rows()});
    shape.head_dim = format.columns();
    shape.head_dim_v = format.head_dim_v;
    for (SourceShape& s : shape.sources) {
      s.v_apart = random.chance(0.2);
      if (!s.v_apart) s.k_format = format;
    }
  } else if (random.chance(0.4)) {
    const auto element = random.one_of({RowElement::int8, RowElement::float8_e4m3});
    for (SourceShape& s : shape.sources) {
      s.v_apart = true;
      s.k_format = eight_bit_rows(element, static_cast<std::int32_t>(shape.head_dim));
      if (random.chance(0.7)) s.v_format = eight_bit_rows(element, static_cast<std::int32_t>(shape.head_dim_v));
    }
  }
}

void set_integer(GuardedTensor& tensor, std::int64_t index, std::int64_t value) {
  tensor.set(index, static_cast<double>(value));
}

std::vector<std::int64_t> cumulative(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> sums(lengths.size() + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), sums.begin() + 1);
  return sums;
}

}  // namespace

SparseShape random_shape(std::uint64_t seed) {
  Random random(seed);
  SparseShape shape;
  shape.packed = random.chance(0.5);
  shape.batch = random.integer(1, 3);
  shape.max_queries = random.one_of<std::int64_t>({1, 2, 5});
  shape.heads_kv = random.one_of<std::int64_t>({1, 1, 2, 3});
  shape.group = random.one_of<std::int64_t>({1, 2, 3, 7, 8, 16});
  shape.head_dim = random.one_of<std::int64_t>({1, 8, 40, 64, 100, 128});
  shape.head_dim_v = random.chance(0.6) ? shape.head_dim : random.one_of<std::int64_t>({1, 24, 64, 130});
  shape.dtype = random.one_of({DType::float32, DType::bfloat16, DType::float16});
  shape.sink = random.chance(0.4);
  shape.lse = random.chance(0.8);
  shape.sources = {random_source(random, shape)};
  if (random.chance(0.4)) shape.sources.push_back(random_source(random, shape));
  if (random.chance(0.3)) shape.options.scale = static_cast<float>(random.normal() * 0.3);
  if (random.chance(0.25)) shape.options.softcap = static_cast<float>(0.5 + 3.0 * random.uniform());
  choose_formats(random, shape);
  return shape;
}

SparseShape random_gpu_shape(std::uint64_t seed, bool wide) {
  SparseShape shape = random_shape(seed);
  Random random(seed + 1'000'000);
  shape.contiguous = true;
  shape.head_dim = random.one_of<std::int64_t>({8, 40, 64, 128});
  shape.head_dim_v = random.chance(0.6) ? shape.head_dim : random.one_of<std::int64_t>({24, 64, 128});
  if (wide) {
    shape.head_dim = random.one_of<std::int64_t>({576, 576, 512, 320});
    shape.head_dim_v = random.chance(0.8) ? std::min<std::int64_t>(shape.head_dim, 512) : 256;
    shape.dtype = random.one_of({DType::bfloat16, DType::float16});
    for (SourceShape& s : shape.sources) {
      s.v_apart = random.chance(0.3);
      s.topk = random.one_of<std::int64_t>({s.topk, 70, 300});
      s.max_keys += s.topk;
    }
  }
  for (SourceShape& s : shape.sources) {
    s.k_format = s.v_format = {};
    s.dtype = shape.dtype;
    s.v_apart = s.v_apart || shape.head_dim_v > shape.head_dim;
  }
  return shape;
}

SparseShape random_gpu_format_shape(std::uint64_t seed, bool wide) {
  constexpr std::int32_t kUnit = 8;  // columns
  SparseShape shape = random_gpu_shape(seed, wide);
  Random random(seed + 2'000'000);
  const auto columns = static_cast<std::int32_t>(shape.head_dim);
  const auto columns_of_v = static_cast<std::int32_t>(shape.head_dim_v);
  for (SourceShape& s : shape.sources) {
    if (random.chance(0.15)) {
      s.dtype = random.one_of({DType::float32, DType::bfloat16, DType::float16});
      continue;
    }
    const bool mla = columns == 576 && columns_of_v == 512;
    const bool v4 = columns == 512 && columns_of_v == 512;
    if (!s.v_apart && mla && random.chance(0.5)) {
      s.k_format = random.one_of({mla_bfloat16_rows(), deepseek_v32_rows()});
    } else if (!s.v_apart && v4 && random.chance(0.6)) {
      s.k_format = random.one_of({deepseek_v4_rows(), deepseek_v41_rows(), deepseek_v41_four_bit_rows()});
    } else {
      s.k_format = random_format(random, columns, s.v_apart ? 0 : columns_of_v, kUnit);
    }
    if (s.v_apart && random.chance(0.7)) s.v_format = random_format(random, columns_of_v, 0, kUnit);
    if (s.v_apart && random.chance(0.2)) {
      s.k_format = eight_bit_rows(RowElement::int8, columns);
      s.v_format = eight_bit_rows(RowElement::float8_e4m3, columns_of_v);
    }
  }
  return shape;
}

std::string describe(const SparseShape& shape) {
  std::string text =
      fmt::format("{} batch {} queries {} heads {}x{} head_dim {}/{} {} sink {} softcap {}",
                  shape.packed ? "packed" : "batched", shape.batch, shape.max_queries, shape.heads_kv, shape.group,
                  shape.head_dim, shape.head_dim_v, name_of(shape.dtype), shape.sink, shape.options.softcap);
  for (const SourceShape& s : shape.sources) {
    text += fmt::format(
        "; layout {} {} v_apart {} block {} topk {} page {} keys {} per head {} lengths {} used {} causal {}",
        static_cast<int>(s.layout), s.k_format.given() ? describe_row_format(s.k_format) : name_of(s.dtype), s.v_apart,
        s.block_size, s.topk, s.page_size, s.max_keys, s.list_per_head, s.lengths, s.used, s.causal);
  }
  return text;
}

SparseCase::SparseCase(const SparseShape& the_shape, std::uint64_t seed) : shape(the_shape), random_(seed) {
  placement_ = {.layout = random_.one_of({Layout::contiguous, Layout::padded, Layout::scrambled}),
                .guard = Guard::bytes,
                .alignment = 1};
  if (shape.contiguous) placement_ = {.layout = Layout::contiguous, .guard = Guard::bytes, .alignment = 8};
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    queries_.push_back(shape.packed ? random_.integer(0, shape.max_queries) : shape.max_queries);
  }
  const std::vector<std::int64_t> sums = cumulative(queries_);
  const std::int64_t total = sums.back();
  const std::int64_t heads = shape.heads_kv * shape.group;
  const auto with = [&](std::int64_t columns) {
    return shape.packed ? std::vector{total, heads, columns}
                        : std::vector{shape.batch, shape.max_queries, heads, columns};
  };
  q = GuardedTensor(shape.dtype, with(shape.head_dim), placement_, random_);
  o = GuardedTensor(shape.dtype, with(shape.head_dim_v), placement_, random_);
  lse = GuardedTensor(DType::float32,
                      shape.packed ? std::vector{heads, total} : std::vector{shape.batch, heads, shape.max_queries},
                      placement_, random_);
  for (std::int64_t i = 0; i < q.size(); ++i) q.set(i, random_.normal());
  arguments_.q = q.view();
  arguments_.o = o.view();
  if (shape.lse) arguments_.lse = lse.view();
  if (shape.sink) {
    sink = GuardedTensor(DType::float32, {heads}, placement_, random_);
    for (std::int64_t i = 0; i < heads; ++i) sink.set(i, 2.0 * random_.normal());
    arguments_.sink = sink.view();
  }
  if (shape.packed) {
    cu_seqlens_q = GuardedTensor(DType::int32, {shape.batch + 1}, placement_, random_);
    for (std::size_t i = 0; i < sums.size(); ++i) set_integer(cu_seqlens_q, static_cast<std::int64_t>(i), sums[i]);
    arguments_.cu_seqlens_q = cu_seqlens_q.view();
  }
  for (std::size_t i = 0; i < shape.sources.size(); ++i) {
    tensors.push_back(std::make_unique<SourceTensors>());
    make_source(i);
    fill_rows(i);
  }
}

void SparseCase::make_source(std::size_t index) {
  const SourceShape& s = shape.sources[index];
  SourceTensors& t = *tensors[index];
  SparseSource& to = arguments_.sources[index];
  to.k_format = s.k_format;
  to.v_format = s.v_format;
  to.block_size = s.block_size;
  to.in_pool = s.layout == KeyLayout::pool;
  to.causal = s.causal;
  std::vector<std::int64_t> capacity(static_cast<std::size_t>(shape.batch), s.max_keys);
  std::vector<std::int64_t> rows;  // the leading axes of k and v
  const std::int64_t pages = (s.max_keys + s.page_size - 1) / s.page_size;
  if (s.layout == KeyLayout::batched) {
    rows = {shape.batch, s.max_keys, shape.heads_kv};
  } else if (s.layout == KeyLayout::packed) {
    for (std::int64_t& keys : capacity) keys = random_.integer(0, s.max_keys);
    const std::vector<std::int64_t> sums = cumulative(capacity);
    t.cu_seqlens_k = GuardedTensor(DType::int32, {shape.batch + 1}, placement_, random_);
    for (std::size_t i = 0; i < sums.size(); ++i) set_integer(t.cu_seqlens_k, static_cast<std::int64_t>(i), sums[i]);
    to.cu_seqlens_k = t.cu_seqlens_k.view();
    rows = {sums.back(), shape.heads_kv};
  } else {
    const std::int64_t pool = shape.batch * pages + 2;
    rows = {pool, s.page_size, shape.heads_kv};
    for (std::int64_t& keys : capacity) keys = (to.in_pool ? pool : pages) * s.page_size;
    if (s.layout == KeyLayout::pages) {
      std::vector<std::int64_t> order(static_cast<std::size_t>(pool));
      std::iota(order.begin(), order.end(), 0);
      for (std::size_t i = order.size() - 1; i > 0; --i) {
        std::swap(order[i], order[static_cast<std::size_t>(random_.integer(0, static_cast<std::int64_t>(i)))]);
      }
      t.page_table = GuardedTensor(DType::int32, {shape.batch, pages}, placement_, random_);
      for (std::int64_t i = 0; i < shape.batch * pages; ++i)
        set_integer(t.page_table, i, order[static_cast<std::size_t>(i)]);
      to.page_table = t.page_table.view();
    }
  }
  std::vector<std::int64_t> lengths = capacity;
  if (s.used) {
    t.seqused_k = GuardedTensor(DType::int32, {shape.batch}, placement_, random_);
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      lengths[static_cast<std::size_t>(b)] = random_.integer(0, capacity[static_cast<std::size_t>(b)]);
      set_integer(t.seqused_k, b, lengths[static_cast<std::size_t>(b)]);
    }
    to.seqused_k = t.seqused_k.view();
  }
  const auto allocate = [&](const RowFormat& format, std::int64_t columns, std::optional<GuardedTensor>& plain,
                            std::vector<std::uint8_t>& bytes, ConstTensorView& view) {
    std::vector<std::int64_t> extents = rows;
    extents.push_back(format.given() ? format.row_bytes : columns);
    if (!format.given()) {
      plain.emplace(s.dtype, extents, placement_, random_);
      view = plain->view();
      return;
    }
    // Pages lie a multiple of 256 bytes apart, whatever the format's alignment.
    const bool packed = extents.size() == 3;
    const std::int64_t page = extents[extents.size() - 3] * extents[extents.size() - 2] * extents.back();
    const std::int64_t stride = (page + 255) / 256 * 256;
    bytes.assign(static_cast<std::size_t>((packed ? 1 : extents[0]) * stride + 256), 0xFF);
    auto* const start = bytes.data() + (256 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 256) % 256;
    if (packed) {
      view = tensor(start, {extents[0], extents[1], extents[2]});
    } else {
      view = tensor(start, {extents[0], extents[1], extents[2], extents[3]});
      view.strides[0] = stride;
    }
  };
  allocate(s.k_format, shape.head_dim, t.k, t.k_bytes, to.k);
  if (s.v_apart) allocate(s.v_format, shape.head_dim_v, t.v, t.v_bytes, to.v);
  make_lists(index, lengths);
}

void SparseCase::make_lists(std::size_t index, const std::vector<std::int64_t>& lengths) {
  const SourceShape& s = shape.sources[index];
  SourceTensors& t = *tensors[index];
  const std::int64_t total = cumulative(queries_).back();
  const std::int64_t heads = s.list_per_head ? shape.heads_kv : 1;
  const std::vector<std::int64_t> leading =
      shape.packed ? std::vector{total} : std::vector{shape.batch, shape.max_queries};
  std::vector<std::int64_t> extents = leading;
  extents.push_back(heads);
  extents.push_back(s.topk);
  t.indices = GuardedTensor(DType::int32, extents, placement_, random_);
  if (s.lengths) t.topk_length = GuardedTensor(DType::int32, leading, placement_, random_);
  std::int64_t row = 0;
  for (std::size_t b = 0; b < queries_.size(); ++b) {
    const std::int64_t named = (lengths[b] + s.block_size - 1) / s.block_size;
    for (std::int64_t i = 0; i < queries_[b]; ++i, ++row) {
      const std::int64_t count = s.lengths ? random_.integer(0, s.topk) : s.topk;
      if (s.lengths) set_integer(t.topk_length, row, count);
      for (std::int64_t n = 0; n < heads * s.topk; ++n) {
        const bool counts = n % std::max<std::int64_t>(s.topk, 1) < count;
        const bool nothing = named == 0 || random_.chance(0.15);
        set_integer(t.indices, row * heads * s.topk + n,
                    !counts   ? std::int64_t{1'000'000'000}
                    : nothing ? std::int64_t{-1}
                              : random_.integer(0, named - 1));
      }
    }
  }
  arguments_.sources[index].indices = t.indices.view();
  if (s.lengths) arguments_.sources[index].topk_length = t.topk_length.view();
}

void SparseCase::fill_rows(std::size_t index) {
  const SourceShape& s = shape.sources[index];
  SourceTensors& t = *tensors[index];
  const ConstTensorView& k = arguments_.sources[index].k;
  SparseForwardArguments alone = arguments_;
  for (std::size_t i = 0; i < alone.sources.size(); ++i) {
    if (i != index && i > index) alone.sources[i] = {};
  }
  std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>> listed;
  const std::int64_t total = cumulative(queries_).back();
  for (std::int64_t row = 0; row < total; ++row) {
    for (std::int64_t head = 0; head < shape.heads_kv; ++head) {
      for (const reference::ListedRow& at : reference::listed_rows(alone, row, head)) {
        if (at.source == index) listed.insert({at.page, at.row, head});
      }
    }
  }
  const std::int64_t pages = k.rank == 3 ? 1 : k.shape[0];
  const std::int64_t rows = k.shape[k.rank == 3 ? 0 : 1];
  const auto fill = [&](const RowFormat& format, std::int64_t columns, std::optional<GuardedTensor>& plain,
                        const ConstTensorView& view) {
    std::vector<float> values(static_cast<std::size_t>(pages * rows * shape.heads_kv * columns));
    std::int64_t at = 0;
    for (std::int64_t page = 0; page < pages; ++page) {
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t head = 0; head < shape.heads_kv; ++head) {
          const bool exists = listed.contains({page, row, head});
          for (std::int64_t c = 0; c < columns; ++c, ++at) {
            const double value = exists ? random_.normal() : kNothing;
            if (plain) {
              plain->set(at, value);
            } else {
              values[static_cast<std::size_t>(at)] = static_cast<float>(value);
            }
          }
        }
      }
    }
    if (plain) return Status();
    TensorView cache = tensor(const_cast<std::uint8_t*>(static_cast<const std::uint8_t*>(view.data)),
                              {pages, rows, shape.heads_kv, format.row_bytes});
    if (view.rank == 4) cache.strides[0] = view.strides[0];
    return encode_rows(tensor(values.data(), {pages, rows, shape.heads_kv, columns}), cache, format);
  };
  const Status of_k = fill(s.k_format, shape.head_dim, t.k, k);
  EXPECT_TRUE(of_k.ok()) << of_k.message();
  if (!s.v_apart) return;
  const Status of_v = fill(s.v_format, shape.head_dim_v, t.v, arguments_.sources[index].v);
  EXPECT_TRUE(of_v.ok()) << of_v.message();
}

}  // namespace strobe::test
