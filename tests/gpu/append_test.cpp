// SPDX-License-Identifier: Apache-2.0
// strobe::append on a GPU: the bits of the CPU engine, which float64 bounds, and nothing written elsewhere, whatever
// the numbers on the device say.
#include <algorithm>
#include <cmath>
#include <limits>

#include "append_on_gpu.h"
#include "attention/seeds.h"
#include "captured_graph.h"

namespace strobe::test {
namespace {

class GpuAppend : public GpuAppendTest {
 protected:
  void expect_the_bits_of_the_cpu(const AppendShape& shape, const Placement& placement, std::uint64_t seed) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + shape.text());
    AppendCase one(shape, placement, seed);
    run(one);
    if (HasFailure()) return;
    one.expect_appended();
    const AppendCase on_cpu(shape, placement, seed);
    const Status status = append(on_cpu.arguments());
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(one.output_bytes() == on_cpu.output_bytes()) << "other bits than the CPU engine's";
  }
};

INSTANTIATE_TEST_SUITE_P(, GpuAppend, kFamilies, family_name);

/// Every other one so that its rows are moved in vectors.
TEST_P(GpuAppend, HasTheBitsOfTheCpu) {
  for (const std::uint64_t seed : chosen_seeds(120)) {
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
    expect_the_bits_of_the_cpu(shape, placement, seed);
    if (HasFailure()) return;
  }
}

/// Rows of several blocks, blocks of many rows, every pair of dtypes, and either kind of scales.
TEST_P(GpuAppend, LongRowsAndManySequences) {
  struct Cached {
    DType dtype;
    bool row_scales;
  };
  for (const DType source : {DType::float32, DType::float16, DType::bfloat16}) {
    for (const Cached& cache :
         {Cached{source, false}, Cached{DType::bfloat16, false}, Cached{DType::int8, false},
          Cached{DType::float8_e4m3, false}, Cached{DType::int8, true}, Cached{DType::float8_e4m3, true}}) {
      AppendShape shape;
      shape.source = shape.table = source;
      shape.cache = cache.dtype;
      shape.row_scales = cache.row_scales;
      shape.packed = shape.queries = true;
      shape.batch = 300;
      shape.capacity = 12;
      shape.page_size = 4;
      shape.heads_kv = 1;
      shape.head_dim = shape.head_dim_v = shape.rotary_dim = 16;
      expect_the_bits_of_the_cpu(shape, {.alignment = 16}, 3);
      shape.batch = 2;
      shape.heads_kv = 24;
      shape.heads_q = 48;
      shape.head_dim = shape.head_dim_v = shape.rotary_dim = 256;
      shape.interleaved = true;
      expect_the_bits_of_the_cpu(shape, {.alignment = 16}, 4);
      if (HasFailure()) return;
    }
  }
}

/// A replay does the same append again.
TEST_P(GpuAppend, IsCaptured) {
  for (const bool row_scales : {false, true}) {
    AppendShape shape;
    shape.rotary_dim = 64;
    shape.queries = true;
    shape.row_scales = row_scales;
    if (row_scales) shape.cache = DType::int8;
    AppendCase one(shape, {}, 9);
    DeviceCopies copies(device());
    const AppendArguments arguments = one.arguments([&](const GuardedTensor& tensor) { return copies.place(tensor); });
    const auto enqueue = [&] {
      const Status status = append(arguments, tested_execution(stream().get()));
      ASSERT_TRUE(status.ok()) << status.message();
    };
    enqueue();  // compiles the kernel
    const CapturedGraph graph(device(), stream(), enqueue);
    copies.download({&one.q_out});  // waits
    for (const GuardedTensor* const output : one.outputs()) copies.upload(*output);
    ASSERT_TRUE(graph.launch());
    copies.download(one.outputs());
    one.expect_appended();
  }
}

/// Tensors on the device, without gaps.
class OnDevice {
 public:
  explicit OnDevice(const runtime::CudaDevice& device) : device_(device) {}

  template <class T>
  TensorView operator()(const std::vector<T>& values, const std::vector<std::int64_t>& shape, DType dtype) {
    Result<gpu::DeviceMemory> memory = gpu::DeviceMemory::allocate(device_, values.size() * sizeof(T));
    EXPECT_TRUE(memory.ok()) << memory.status().message();
    EXPECT_TRUE(memory->upload(values.data()).ok());
    memory_.push_back(std::move(*memory));
    TensorView view{.data = memory_.back().data(),
                    .dtype = dtype,
                    .device = {DeviceType::cuda, device_.index},
                    .rank = static_cast<int>(shape.size())};
    std::int64_t stride = 1;
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      view.shape[axis] = shape[axis];
      view.strides[axis] = stride;
      stride *= shape[axis];
    }
    return view;
  }

  /// Of the index-th tensor.
  template <class T>
  void download(std::size_t index, std::vector<T>& to) const {
    const Status status = memory_[index].download(to.data());
    EXPECT_TRUE(status.ok()) << status.message();
  }

 private:
  const runtime::CudaDevice& device_;
  std::vector<gpu::DeviceMemory> memory_;
};

/// Numbers around those that scale * 8-bit numbers and their middles are.
std::vector<float> numbers_around(float scale, DType dtype) {
  std::vector<float> numbers{0.0F,
                             -0.0F,
                             1e30F,
                             -1e30F,
                             std::numeric_limits<float>::infinity(),
                             -std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::quiet_NaN()};
  for (int i = 0; i < 0x7e; ++i) {
    const auto at = [&](int bits) {
      return dtype == DType::int8 ? static_cast<float>(bits) : to_float(float8_e4m3{static_cast<std::uint8_t>(bits)});
    };
    const float quotients[] = {at(i), (at(i) + at(i + 1)) / 2.0F, at(i) * 1e-4F};
    for (const float quotient : quotients) {
      const float x = quotient * scale;
      for (const float one : {x, std::nextafter(x, 0.0F), std::nextafter(x, 1e38F)}) {
        numbers.push_back(i % 2 == 0 ? one : -one);
      }
    }
  }
  numbers.resize((numbers.size() + 63) / 64 * 64, scale);
  return numbers;
}

TEST_P(GpuAppend, QuotientsHaveTheBitsOfTheCpu) {
  for (const DType dtype : {DType::int8, DType::float8_e4m3}) {
    for (const float scale : {1.0F, 0.0123F, 3e-5F, 777.7F, 0x1.fffffep-3F, 0x1p-70F, 0x1.234p-100F, 0x1p70F}) {
      const std::vector<float> numbers = numbers_around(scale, dtype);
      const auto rows = static_cast<std::int64_t>(numbers.size() / 64);
      std::vector<std::uint8_t> k(numbers.size(), 0x55);
      std::vector<std::uint8_t> v = k;
      const std::vector<std::int32_t> lengths{0};
      const std::vector<float> scales{scale};
      AppendArguments host;
      const auto view = [&](auto& values, DType type) {
        TensorView tensor{.data = values.data(), .dtype = type, .device = {}, .rank = 4};
        tensor.shape = {1, rows, 1, 64};
        tensor.strides = {rows * 64, 64, 64, 1};
        return tensor;
      };
      std::vector<float> news = numbers;
      host.k_cache = view(k, dtype);
      host.v_cache = view(v, dtype);
      host.k_new = host.v_new = view(news, DType::float32);
      host.cache_seqlens = tensor(lengths.data(), {1});
      host.k_descale = host.v_descale = tensor(scales.data(), {1, 1, 1});
      OnDevice on_device(device());
      AppendArguments a = host;
      a.k_cache = on_device(k, {1, rows, 1, 64}, dtype);
      a.v_cache = on_device(v, {1, rows, 1, 64}, dtype);
      a.k_new = a.v_new = on_device(numbers, {1, rows, 1, 64}, DType::float32);
      a.cache_seqlens = on_device(lengths, {1}, DType::int32);
      a.k_descale = a.v_descale = on_device(scales, {1, 1, 1}, DType::float32);
      const Status status = append(a, tested_execution(stream().get()));
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(append(host).ok());
      std::vector<std::uint8_t> got(k.size());
      on_device.download(0, got);
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i], k[i]) << numbers[i] << " / " << scale << " as " << name_of(dtype);
      }
    }
  }
}

/// Four sequences of one new row each, behind lengths in the device's memory.
class BadNumbers {
 public:
  static constexpr std::int64_t kBatch = 4, kPages = 6, kPageSize = 4, kMaxPages = 3, kColumns = 16, kPositions = 20;
  static constexpr std::uint16_t kOld = 0x4000, kNew = 0x3c00;  // 2 and 1 in float16

  std::vector<std::int32_t> lengths{0, 5, 2, 11};
  std::vector<std::int32_t> cu_seqlens{0, 1, 2, 3, 4};
  std::vector<std::int32_t> table{0, 1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5};
  std::vector<std::int32_t> positions{0, 5, 2, 11};
  std::vector<std::uint16_t> cache = std::vector<std::uint16_t>(kPages * kPageSize * kColumns, kOld);
  std::vector<std::uint16_t> queries = std::vector<std::uint16_t>(kBatch * kColumns, kOld);

  /// Runs; the rows of the cache that were written, in order.
  std::vector<std::int64_t> run(const runtime::CudaDevice& device, const gpu::Stream& stream) {
    OnDevice on_device(device);
    const std::vector<std::uint16_t> rows(kBatch * kColumns, kNew);
    const std::vector<std::uint16_t> cos(kPositions * kColumns / 2, kNew);
    const std::vector<std::uint16_t> sin(kPositions * kColumns / 2, 0);
    AppendArguments a;
    a.k_cache = on_device(cache, {kPages, kPageSize, 1, kColumns}, DType::float16);
    a.v_cache = on_device(cache, {kPages, kPageSize, 1, kColumns}, DType::float16);
    a.k_new = on_device(rows, {kBatch, 1, kColumns}, DType::float16);
    a.v_new = on_device(rows, {kBatch, 1, kColumns}, DType::float16);
    a.cu_seqlens_new = a.cu_seqlens_q = on_device(cu_seqlens, {kBatch + 1}, DType::int32);
    a.cache_seqlens = on_device(lengths, {kBatch}, DType::int32);
    a.page_table = on_device(table, {kBatch, kMaxPages}, DType::int32);
    a.positions = a.positions_q = on_device(positions, {kBatch}, DType::int32);
    a.cos = on_device(cos, {kPositions, kColumns / 2}, DType::float16);
    a.sin = on_device(sin, {kPositions, kColumns / 2}, DType::float16);
    a.q = on_device(rows, {kBatch, 1, kColumns}, DType::float16);
    a.q_out = on_device(queries, {kBatch, 1, kColumns}, DType::float16);
    const Status status = append(a, tested_execution(stream.get()));
    EXPECT_TRUE(status.ok()) << status.message();
    constexpr std::size_t kQueries = 11;  // in the order above
    on_device.download(kQueries, queries);
    std::vector<std::vector<std::int64_t>> written;
    for (std::size_t i = 0; i < 2; ++i) {
      on_device.download(i, cache);
      written.push_back(new_rows());
    }
    EXPECT_EQ(written[0], written[1]) << "K and V went to different places";
    return written[0];
  }

 private:
  /// Rows that are new as a whole; all others must be old.
  std::vector<std::int64_t> new_rows() const {
    std::vector<std::int64_t> rows;
    for (std::int64_t row = 0; row < kPages * kPageSize; ++row) {
      const auto* const first = &cache[static_cast<std::size_t>(row * kColumns)];
      const auto count = std::count(first, first + kColumns, kNew);
      if (count == kColumns) rows.push_back(row);
      EXPECT_EQ(count + std::count(first, first + kColumns, kOld), kColumns) << "row " << row;
      EXPECT_TRUE(count == 0 || count == kColumns) << "row " << row;
    }
    return rows;
  }
};

constexpr auto kLeastNumber = std::numeric_limits<std::int32_t>::min();
constexpr auto kMostNumber = std::numeric_limits<std::int32_t>::max();

TEST_P(GpuAppend, WritesNothingWithoutAPlace) {
  const auto written = [&](const auto& change) {
    BadNumbers numbers;
    numbers.table = {0, 1, 2, 2, 3, 1, 4, 5, 5, 5, 5, 5};
    change(numbers);
    return numbers.run(device(), stream());
  };
  const auto rows = [](std::initializer_list<std::int64_t> rows_in) { return std::vector<std::int64_t>(rows_in); };
  // Sequence 0 at row 0 of page 0, 1 at row 1 of page 3, 2 at row 2 of page 4, 3 at row 3 of page 5.
  EXPECT_EQ(written([](BadNumbers&) {}), rows({0, 13, 18, 23}));
  for (const std::int32_t page : {-1, 6, kLeastNumber, kMostNumber}) {
    EXPECT_EQ(written([&](BadNumbers& x) { x.table[4] = page; }), rows({0, 18, 23})) << page;
  }
  for (const std::int32_t length : {-1, 12, kLeastNumber, kMostNumber}) {
    EXPECT_EQ(written([&](BadNumbers& x) { x.lengths[2] = length; }), rows({0, 13, 23})) << length;
  }
  for (const std::int32_t position : {-1, 20, kLeastNumber, kMostNumber}) {
    EXPECT_EQ(written([&](BadNumbers& x) { x.positions[3] = position; }), rows({0, 13, 18})) << position;
  }
  EXPECT_EQ(written([](BadNumbers& x) { x.cu_seqlens = {0, 1, 2, 2, 2}; }), rows({0, 13}));
  EXPECT_EQ(written([](BadNumbers& x) { x.cu_seqlens = {0, 0, 0, 0, 1}; }), rows({23}));
  EXPECT_EQ(written([](BadNumbers& x) { x.cu_seqlens = {0, 0, 0, 0, 0}; }), rows({}));
  written([](BadNumbers& x) {
    x.cu_seqlens = {kMostNumber, kLeastNumber, 7, -3, 2};
  });  // any rows, but whole ones of the cache
}

TEST_P(GpuAppend, QueriesWithoutAnglesAreNaN) {
  BadNumbers numbers;
  numbers.positions[1] = BadNumbers::kPositions;
  numbers.cu_seqlens = {0, 1, 2, 3, 3};  // the last row is of no sequence
  numbers.run(device(), stream());
  for (std::int64_t i = 0; i < BadNumbers::kBatch * BadNumbers::kColumns; ++i) {
    const std::int64_t row = i / BadNumbers::kColumns;
    const std::uint16_t got = numbers.queries[static_cast<std::size_t>(i)];
    if (row == 1) {
      EXPECT_GT(got & 0x7fffU, 0x7c00U) << i;
    } else {
      EXPECT_EQ(got, row == 3 ? BadNumbers::kOld : BadNumbers::kNew) << i;
    }
  }
}

}  // namespace
}  // namespace strobe::test
