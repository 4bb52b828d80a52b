// SPDX-License-Identifier: Apache-2.0
// How an append is cut for a GPU: the launch's blocks, threads and items, walked one after another on the host, write
// what the CPU engine's append writes.
#include "gpu/auxiliary/append_launch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "append_case.h"
#include "kernels/auxiliary/append_places.h"

namespace strobe::test {
namespace {

using auxiliary::AppendedRows;
using auxiliary::AppendParams;
using auxiliary::Rotation;
using auxiliary::RowPlace;
using gpu::AppendLaunch;

double read(const void* from, std::int64_t element, DType dtype) {
  const auto* const at = static_cast<const std::byte*>(from) + element * static_cast<std::int64_t>(size_of(dtype));
  if (dtype == DType::float32) return *reinterpret_cast<const float*>(at);
  if (dtype == DType::float16) return to_float(*reinterpret_cast<const float16*>(at));
  return to_float(*reinterpret_cast<const bfloat16*>(at));
}

void write(void* to, std::int64_t element, DType dtype, float value) {
  auto* const at = static_cast<std::byte*>(to) + element * static_cast<std::int64_t>(size_of(dtype));
  switch (dtype) {
    case DType::float32: return void(std::memcpy(at, &value, sizeof(value)));
    case DType::float16: *reinterpret_cast<float16*>(at) = to_float16(value); return;
    case DType::bfloat16: *reinterpret_cast<bfloat16*>(at) = to_bfloat16(value); return;
    case DType::float8_e4m3: *reinterpret_cast<float8_e4m3*>(at) = to_float8_e4m3(value); return;
    default:
      *reinterpret_cast<std::int8_t*>(at) = static_cast<std::int8_t>(std::lrint(std::clamp(value, -127.0F, 127.0F)));
  }
}

/// What the kernel does to one of its three tensors, for the variant C whose rotation here is `rotation`.
template <auxiliary::AppendConfig C, Rotation rotation>
class Walk {
 public:
  Walk(const AppendArguments& a, const AppendParams& params, const AppendedRows& rows, bool queries, DType to)
      : a_(a), params_(params), rows_(rows), queries_(queries), to_(to) {}

  void run() {
    EXPECT_LE(rows_.rows_per_block, auxiliary::kMostRows);
    for (int block = 0; block < rows_.blocks; ++block) {
      const auxiliary::BlockRows own(rows_, block);
      ASSERT_GT(own.items, 0) << "block " << block;
      ASSERT_LE(own.items, auxiliary::kMostBlockItems) << "block " << block;
      find_scales(own);
      for_each_item(own, [&](const Item& item) {
        const float scale = scale_of(item);
        if (has_row_scales() && item.place.first == 0) rows_.row_scales[scale_at(item)] = scale;
        for_each_number(item, [&](int column, float x) {
          write(rows_.to, item.row.to + item.place.head * rows_.to_head + column, to_, is_stored() ? x / scale : x);
        });
      });
    }
  }

 private:
  struct Item {
    int index;  // in its block
    int source_row;
    std::int64_t scale;  // of its row's first head
    RowPlace row;
    auxiliary::ItemPlace place;
  };

  bool is_stored() const { return size_of(to_) == 1; }
  bool has_row_scales() const { return rows_.row_scales != nullptr; }
  std::int64_t scale_at(const Item& item) const { return item.scale + item.place.head * rows_.scale_head; }

  /// What a block's threads find out together: the largest magnitude of each head that it has.
  void find_scales(const auxiliary::BlockRows& own) {
    if (!has_row_scales()) return;
    largest_.fill(0.0F);
    for_each_item(own, [&](const Item& item) {
      float& largest = largest_[head_of(item)];
      for_each_number(item, [&](int, float x) { largest = std::max(largest, std::abs(x)); });
    });
  }
  std::size_t head_of(const Item& item) const {
    return static_cast<std::size_t>(rows_.items_per_head.quotient(item.index));
  }
  float scale_of(const Item& item) const {
    if (!is_stored()) return 1.0F;
    if (!has_row_scales()) return rows_.scales[scale_at(item)];
    return std::max(largest_[head_of(item)] / (to_ == DType::int8 ? 127.0F : 448.0F), 0x1p-80F);
  }

  /// The items of a block whose rows have a place.
  template <class Visit>
  void for_each_item(const auxiliary::BlockRows& own, const Visit& visit) const {
    const int chunk_items = static_cast<int>(rows_.items_of_chunk.divisor);
    for (int index = 0; index < own.items; ++index) {
      const int row_of_block = rows_.items_of_chunk.quotient(index);
      const int row = own.first + row_of_block;
      ASSERT_LT(row_of_block, own.count);
      const auxiliary::NearSequence near{0, std::min(row, 1)};  // as far from the row's as can be
      const RowPlace place = queries_ ? place_of_query(params_, row, near) : place_in_cache(params_, rows_, row, near);
      if (place.to < 0) continue;
      const int of_row = index - row_of_block * chunk_items + own.chunk * chunk_items;
      const std::int64_t scale = has_row_scales() ? auxiliary::scale_of(rows_, row_in_cache(params_, rows_, row, near))
                                                  : place.sequence * rows_.scale_batch;
      visit(Item{index, row, scale, place, auxiliary::item_place<C, rotation>(params_, rows_, of_row)});
    }
  }

  /// visit(column, x) for the numbers of an item, rotated.
  template <class Visit>
  void for_each_number(const Item& all, const Visit& visit) const {
    const auto& [index, row, scale, place, item] = all;
    std::int64_t from = rows_.cu_seqlens != nullptr ? row * rows_.from_row
                                                    : rows_.seqlen.quotient(row) * rows_.from_batch +
                                                          rows_.seqlen.remainder(row) * rows_.from_row;
    from += item.head * rows_.from_head;
    const auto at = [&](int column) { return static_cast<float>(read(rows_.from, from + column, a_.k_new.dtype)); };
    constexpr int kVector = auxiliary::append_vector(C);
    const int step = item.angle >= 0 && item.second < 0 ? 2 : 1;
    for (int i = 0; i < kVector; i += step) {
      const int first = item.first + i;
      const int second = item.second >= 0 ? item.second + i : first + 1;
      if (item.angle < 0) {
        visit(first, at(first));
        continue;
      }
      const int angle = item.angle + i / step;
      const auto cos = static_cast<float>(read(a_.cos.data, place.position * a_.cos.strides[0] + angle, a_.cos.dtype));
      const auto sin = static_cast<float>(read(a_.sin.data, place.position * a_.sin.strides[0] + angle, a_.sin.dtype));
      const float products[] = {at(first) * cos, at(second) * sin, at(first) * sin, at(second) * cos};
      visit(first, products[0] - products[1]);
      visit(second, products[2] + products[3]);
    }
  }

  const AppendArguments& a_;
  const AppendParams& params_;
  const AppendedRows& rows_;
  bool queries_;
  DType to_;
  std::array<float, auxiliary::kMostBlockItems> largest_{};
};

template <Element source, Rotation rotation, bool aligned>
void walk(const AppendArguments& a, const AppendLaunch& launch) {
  constexpr auxiliary::AppendConfig kConfig{.source = source, .rotation = rotation, .aligned = aligned};
  const AppendParams& params = launch.params;
  EXPECT_EQ(launch.blocks, params.k.blocks + params.v.blocks + params.q.blocks);
  Walk<kConfig, rotation>(a, params, params.k, false, a.k_cache.dtype).run();
  Walk<kConfig, Rotation::none>(a, params, params.v, false, a.v_cache.dtype).run();
  if (a.q.given()) Walk<kConfig, rotation>(a, params, params.q, true, a.q_out.dtype).run();
}

template <Element source, bool aligned>
void walk(const AppendArguments& a, const AppendLaunch& launch) {
  switch (launch.config.rotation) {
    case Rotation::none: return walk<source, Rotation::none, aligned>(a, launch);
    case Rotation::halves: return walk<source, Rotation::halves, aligned>(a, launch);
    case Rotation::interleaved: return walk<source, Rotation::interleaved, aligned>(a, launch);
  }
}

void walk(const AppendArguments& a, const AppendLaunch& launch) {
  const bool wide = launch.config.source == Element::fp32;  // of the two 16-bit formats, vectors have the same length
  if (launch.config.aligned) return wide ? walk<Element::fp32, true>(a, launch) : walk<Element::bf16, true>(a, launch);
  return wide ? walk<Element::fp32, false>(a, launch) : walk<Element::bf16, false>(a, launch);
}

TEST(AppendLaunch, WritesWhatTheCpuWrites) {
  int aligned = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    AppendShape shape = AppendShape::random(random);
    Placement placement{.layout = random.one_of({Layout::contiguous, Layout::padded, Layout::transposed}),
                        .guard = Guard::bytes,
                        .alignment = 1};
    if (seed % 2 == 0) {
      placement.alignment = 16;
      shape.head_dim = random.one_of<std::int64_t>({16, 64, 80, 128, 256});
      shape.head_dim_v = random.one_of<std::int64_t>({16, 64, 128});
      shape.rotary_dim = random.one_of<std::int64_t>({0, 16, shape.head_dim, shape.head_dim / 32 * 16});
    }
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + shape.text());
    const AppendCase walked(shape, placement, seed);
    const AppendCase on_cpu(shape, placement, seed);
    const AppendArguments arguments = walked.arguments();
    const Result<AppendLaunch> launch = gpu::append_launch(arguments, static_cast<int>(random.integer(1, 200)));
    ASSERT_TRUE(launch.ok()) << launch.status().message();
    aligned += launch->config.aligned ? 1 : 0;
    walk(arguments, *launch);
    ASSERT_TRUE(append(on_cpu.arguments()).ok());
    ASSERT_TRUE(walked.output_bytes() == on_cpu.output_bytes());
    walked.expect_appended();
    if (HasFailure()) return;
  }
  EXPECT_GT(aligned, 50);
}

/// Tensors without data: what a launch is cut into.
AppendArguments large(std::int64_t batch, std::int64_t count, std::int64_t heads, std::int64_t head_dim) {
  static const std::int32_t zero = 0;
  const auto rows = [&](std::int64_t first, std::int64_t second) {
    TensorView view{.data = nullptr, .dtype = DType::bfloat16, .device = {}, .rank = 4};
    view.shape = {first, second, heads, head_dim};
    view.strides = {second * heads * head_dim, heads * head_dim, head_dim, 1};
    return view;
  };
  AppendArguments a;
  a.k_cache = a.v_cache = rows(batch, count);
  a.k_new = a.v_new = rows(batch, count);
  a.cache_seqlens = tensor(&zero, {batch});
  return a;
}

constexpr int kMultiprocessors = 132;

TEST(AppendLaunch, GivesEveryMultiprocessorWork) {
  const Result<AppendLaunch> decode = gpu::append_launch(large(64, 1, 8, 128), kMultiprocessors);
  ASSERT_TRUE(decode.ok());
  EXPECT_EQ(decode->params.k.rows_per_block, 2);  // 128 vectors each, and 256 threads
  EXPECT_EQ(decode->blocks, 64);
  const Result<AppendLaunch> prompt = gpu::append_launch(large(8, 4096, 8, 128), kMultiprocessors);
  ASSERT_TRUE(prompt.ok());
  EXPECT_EQ(prompt->params.k.rows_per_block, 8);  // four vectors a thread
  EXPECT_EQ(prompt->blocks, 2 * 8 * 4096 / 8);
}

TEST(AppendLaunch, CutsLongRows) {
  const Result<AppendLaunch> launch = gpu::append_launch(large(1, 2, 100, 512), kMultiprocessors);
  ASSERT_TRUE(launch.ok());
  EXPECT_EQ(launch->params.k.rows_per_block, 1);
  EXPECT_EQ(launch->params.k.chunks, 25);
}

/// A block has whole heads where rows have scales of their own, whatever a head's items are.
TEST(AppendLaunch, ScalesOfRowsKeepHeadsTogether) {
  float scale = 0.0F;
  for (const std::int64_t head_dim : {64, 100, 128, 576}) {
    for (const std::int64_t heads : {1, 3, 24, 100}) {
      AppendArguments a = large(3, 5, heads, head_dim);
      a.k_cache.dtype = a.v_cache.dtype = DType::int8;
      a.k_row_descale = a.v_row_descale = TensorView{.data = &scale, .dtype = DType::float32, .device = {}, .rank = 3};
      const Result<AppendLaunch> launch = gpu::append_launch(a, kMultiprocessors);
      ASSERT_TRUE(launch.ok());
      const AppendedRows& rows = launch->params.k;
      EXPECT_EQ(rows.items_of_chunk.divisor % rows.items_per_head.divisor, 0U) << head_dim << ", " << heads;
      EXPECT_LE(rows.items_of_chunk.divisor * static_cast<unsigned>(rows.rows_per_block),
                static_cast<unsigned>(auxiliary::kMostBlockItems));
      EXPECT_GE(rows.chunks * rows.items_of_chunk.divisor, static_cast<unsigned>(rows.items));
    }
  }
}

TEST(AppendLaunch, HasNoBlocksWithoutRows) {
  for (const auto& [batch, count, heads] : {std::tuple{0, 5, 2}, std::tuple{5, 0, 2}, std::tuple{5, 5, 0}}) {
    const Result<AppendLaunch> launch = gpu::append_launch(large(batch, count, heads, 64), kMultiprocessors);
    ASSERT_TRUE(launch.ok());
    EXPECT_EQ(launch->blocks, 0);
  }
}

TEST(AppendLaunch, SaysWhatItCannotCount) {
  const Result<AppendLaunch> launch = gpu::append_launch(large(1 << 16, 1 << 16, 1, 1), kMultiprocessors);
  ASSERT_FALSE(launch.ok());
  EXPECT_EQ(launch.status().code(), StatusCode::unsupported);
  EXPECT_NE(launch.status().message().find("appending 4294967296 rows"), std::string::npos)
      << launch.status().message();
}

}  // namespace
}  // namespace strobe::test
