// SPDX-License-Identifier: Apache-2.0
// strobe::encode_rows, decode_rows and append_rows on a GPU: the bytes and the numbers of the CPU, in ready-made
// formats and in those that seeds make up.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "attention/random.h"
#include "attention/seeds.h"
#include "checked_process.h"
#include "gpu/device_memory.h"
#include "gpu_test.h"
#include "sparse/random_format.h"
#include "strobe/row_format.h"
#include "tested_engine.h"

namespace strobe::test {
namespace {

constexpr std::int64_t kPages = 3;
constexpr std::int64_t kPageRows = 5;
constexpr std::int64_t kHeadsOfRows = 2;

/// The same bytes on the host and on the device.
template <class T>
class Both {
 public:
  Both(const runtime::CudaDevice& device, std::vector<T> values) : host(std::move(values)), index_(device.index) {
    Result<gpu::DeviceMemory> memory = gpu::DeviceMemory::allocate(device, host.size() * sizeof(T));
    EXPECT_TRUE(memory.ok()) << memory.status().message();
    if (memory.ok()) memory_ = std::move(*memory);
    upload();
  }

  void upload() { EXPECT_TRUE(memory_.upload(host.data()).ok()); }
  std::vector<T> download() const {
    std::vector<T> values(host.size());
    EXPECT_TRUE(memory_.download(values.data()).ok());
    return values;
  }

  /// A view of the host's as one of the device's.
  template <class View>
  View on_device(View view) const {
    const auto offset = static_cast<const std::byte*>(view.data) - reinterpret_cast<const std::byte*>(host.data());
    view.data = memory_.data() + offset;
    view.device = {DeviceType::cuda, index_};
    return view;
  }

  std::vector<T> host;

 private:
  int index_;
  gpu::DeviceMemory memory_;
};

/// Rows of numbers of all sizes, and here and there one that is none.
std::vector<float> rows_of(Random& random, std::int64_t columns, bool finite) {
  std::vector<float> rows(static_cast<std::size_t>(kPages * kPageRows * kHeadsOfRows * columns));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<float>(random.normal() * std::exp2(static_cast<double>(i / 97 % 23) - 11.0));
    if (!finite && random.chance(0.001)) rows[i] = std::numeric_limits<float>::infinity();
    if (random.chance(0.01)) rows[i] = -0.0F;
  }
  return rows;
}

RowFormat format_of(std::uint64_t seed, Random& random) {
  const RowFormat ready[] = {mla_bfloat16_rows(), deepseek_v32_rows(), deepseek_v4_rows(), deepseek_v41_rows(),
                             deepseek_v41_four_bit_rows()};
  if (seed <= std::size(ready)) return ready[seed - 1];
  return random_format(random, static_cast<std::int32_t>(random.one_of<std::int64_t>({1, 6, 40, 67, 130, 576})), 0);
}

/// Pages that begin at multiples of 256 bytes, of which memory of a device does, too.
TensorView cache_in(std::uint8_t* bytes, const RowFormat& format) {
  TensorView cache = tensor(bytes, {kPages, kPageRows, kHeadsOfRows, format.row_bytes});
  cache.strides[0] = (cache.strides[0] + 255) / 256 * 256;
  return cache;
}

std::size_t cache_bytes(const RowFormat& format) {
  return static_cast<std::size_t>(kPages * cache_in(nullptr, format).strides[0]);
}

/// Host memory of a cache, at a multiple of 256.
class HostCache {
 public:
  explicit HostCache(const RowFormat& format) : count_(cache_bytes(format)), memory_(count_ + 256, 0xA5) {
    view = cache_in(data(), format);
  }
  std::vector<std::uint8_t> bytes() { return {data(), data() + count_}; }
  TensorView view;

 private:
  std::uint8_t* data() { return memory_.data() + (256 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 256) % 256; }
  std::size_t count_;
  std::vector<std::uint8_t> memory_;
};

class GpuCodedRows : public FamilyTest {};

INSTANTIATE_TEST_SUITE_P(, GpuCodedRows, kFamilies, family_name);

TEST_P(GpuCodedRows, AreWrittenAndReadAsOnTheCpu) {
  for (const std::uint64_t seed : chosen_seeds(40)) {
    Random random(seed);
    const RowFormat format = format_of(seed, random);
    SCOPED_TRACE("STROBE_SEED=" + std::to_string(seed) + ": " + describe_row_format(format));
    const std::int64_t columns = format.columns();
    const std::initializer_list<std::int64_t> shape = {kPages, kPageRows, kHeadsOfRows, columns};
    Both<float> rows(device(), rows_of(random, columns, false));
    Both<std::uint8_t> cache(device(), std::vector<std::uint8_t>(cache_bytes(format), 0xA5));
    const Execution execution = tested_execution(stream().get());
    Status status = encode_rows(rows.on_device(ConstTensorView(tensor(rows.host.data(), shape))),
                                cache.on_device(cache_in(cache.host.data(), format)), format, execution);
    ASSERT_TRUE(status.ok()) << status.message();
    HostCache expected(format);
    ASSERT_TRUE(encode_rows(tensor(rows.host.data(), shape), expected.view, format).ok());
    EXPECT_EQ(cache.download(), expected.bytes());

    Both<float> decoded(device(), std::vector<float>(rows.host.size(), 7.0F));
    status = decode_rows(cache.on_device(ConstTensorView(cache_in(cache.host.data(), format))),
                         decoded.on_device(tensor(decoded.host.data(), shape)), format, execution);
    ASSERT_TRUE(status.ok()) << status.message();
    std::vector<float> as_on_cpu(rows.host.size());
    ASSERT_TRUE(decode_rows(expected.view, tensor(as_on_cpu.data(), shape), format).ok());
    const std::vector<float> read = decoded.download();
    for (std::size_t i = 0; i < read.size(); ++i) {
      const bool both_nan = std::isnan(read[i]) && std::isnan(as_on_cpu[i]);
      ASSERT_TRUE(both_nan || std::memcmp(&read[i], &as_on_cpu[i], sizeof(float)) == 0)
          << "column " << i % static_cast<std::size_t>(columns) << ": " << read[i] << " for " << as_on_cpu[i];
    }
    if (HasFailure()) return;
  }
}

/// Two sequences in pages, packed; a third's page does not exist: its row is not written.
TEST_P(GpuCodedRows, AreAppendedAsOnTheCpu) {
  for (const std::uint64_t seed : chosen_seeds(20)) {
    Random random(seed);
    const RowFormat format = format_of(seed, random);
    SCOPED_TRACE("STROBE_SEED=" + std::to_string(seed) + ": " + describe_row_format(format));
    const std::int64_t columns = format.columns();
    Both<float> rows(device(), rows_of(random, columns, true));
    Both<std::uint8_t> cache(device(), std::vector<std::uint8_t>(cache_bytes(format), 0xA5));
    Both<std::int32_t> cumulative(device(), {0, 3, 4, 5});
    Both<std::int32_t> lengths(device(), {4, 1, 0});
    Both<std::int32_t> table(device(), {2, 0, 1, 7, 7, 7});
    AppendRowsArguments append;
    append.cache = cache.on_device(cache_in(cache.host.data(), format));
    append.rows = rows.on_device(ConstTensorView(tensor(rows.host.data(), {5, kHeadsOfRows, columns})));
    append.cu_seqlens_new = cumulative.on_device(ConstTensorView(tensor(cumulative.host.data(), {4})));
    append.cache_seqlens = lengths.on_device(ConstTensorView(tensor(lengths.host.data(), {3})));
    append.page_table = table.on_device(ConstTensorView(tensor(table.host.data(), {3, 2})));
    const Status status = append_rows(append, format, tested_execution(stream().get()));
    ASSERT_TRUE(status.ok()) << status.message();

    HostCache expected(format);
    AppendRowsArguments on_cpu;
    on_cpu.cache = expected.view;
    on_cpu.rows = tensor(rows.host.data(), {4, kHeadsOfRows, columns});
    std::vector<std::int32_t> two = {0, 3, 4};
    on_cpu.cu_seqlens_new = tensor(two.data(), {3});
    on_cpu.cache_seqlens = tensor(lengths.host.data(), {2});
    std::vector<std::int32_t> existing = {2, 0, 1, 0};
    on_cpu.page_table = tensor(existing.data(), {2, 2});
    const Status as_expected = append_rows(on_cpu, format);
    ASSERT_TRUE(as_expected.ok()) << as_expected.message();
    EXPECT_EQ(cache.download(), expected.bytes());
    if (HasFailure()) return;
  }
}

/// Of a process that checks them, lengths beyond the cache are an error; nothing is written, and the next call is
/// right.
TEST_P(GpuCodedRows, LengthsOutOfRangeAreErrorsWhereTheyAreChecked) {
  expect_passes_checked([&] {
    const RowFormat format = deepseek_v32_rows();
    Random random(1);
    Both<float> rows(device(), rows_of(random, format.columns(), true));
    Both<std::uint8_t> cache(device(), std::vector<std::uint8_t>(cache_bytes(format), 0xA5));
    Both<std::int32_t> lengths(device(), {2, kPageRows, 0});
    AppendRowsArguments append;
    append.cache = cache.on_device(cache_in(cache.host.data(), format));
    append.rows =
        rows.on_device(ConstTensorView(tensor(rows.host.data(), {kPages, 1, kHeadsOfRows, format.columns()})));
    append.cache_seqlens = lengths.on_device(ConstTensorView(tensor(lengths.host.data(), {kPages})));
    const Status status = append_rows(append, format, tested_execution(stream().get()));
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.message(), "sequence 1 has 5 rows and appends 1: its part of the cache has 5");
    EXPECT_EQ(cache.download(), cache.host);

    lengths.host[1] = kPageRows - 1;
    lengths.upload();
    const Status next = append_rows(append, format, tested_execution(stream().get()));
    ASSERT_TRUE(next.ok()) << next.message();
    HostCache expected(format);
    AppendRowsArguments on_cpu;
    on_cpu.cache = expected.view;
    on_cpu.rows = tensor(rows.host.data(), {kPages, 1, kHeadsOfRows, format.columns()});
    on_cpu.cache_seqlens = tensor(lengths.host.data(), {kPages});
    ASSERT_TRUE(append_rows(on_cpu, format).ok());
    EXPECT_EQ(cache.download(), expected.bytes());
  });
}

}  // namespace
}  // namespace strobe::test
