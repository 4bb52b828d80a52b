// SPDX-License-Identifier: Apache-2.0
// strobe::append on a GPU with scales of rows, which it computes: the bits of the CPU engine, and no scale of a row
// that is not written.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "append_on_gpu.h"

namespace strobe::test {
namespace {

class GpuRowScales : public GpuAppendTest {};

INSTANTIATE_TEST_SUITE_P(, GpuRowScales, kFamilies, family_name);

/// Rows of zeros, of tiny and of huge numbers, and rows with NaN and infinity, in vectors and one by one.
TEST_P(GpuRowScales, HaveTheBitsOfTheCpu) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const std::int64_t columns : {64, 7}) {
    AppendShape shape;
    shape.batch = 1;
    shape.heads_kv = 2;
    shape.head_dim = shape.head_dim_v = columns;
    shape.capacity = 60;
    shape.most_new = 50;
    shape.packed = shape.row_scales = true;
    for (const DType dtype : {DType::int8, DType::float8_e4m3}) {
      shape.cache = dtype;
      const auto special = [&] {
        AppendCase one(shape, {.alignment = 16}, 2);
        one.change_new_rows([&](std::int64_t row, std::int64_t column, double x) -> double {
          switch (row % 8) {
            case 0: return 0.0;
            case 1: return column == 3 ? std::numeric_limits<double>::quiet_NaN() : x;
            case 2: return column == 5 ? static_cast<double>(-kInf) : x;
            case 3: return std::ldexp(x, -90);
            case 4: return std::ldexp(x, -140);
            case 5: return std::ldexp(x, 120);
            case 6: return column == 6 ? static_cast<double>(std::numeric_limits<float>::max()) : -0.0;
            default: return x;
          }
        });
        return one;
      };
      AppendCase one = special();
      ASSERT_GE(one.arguments().k_new.shape[0], 16);
      run(one);
      if (HasFailure()) return;
      const AppendCase on_cpu = special();
      ASSERT_TRUE(append(on_cpu.arguments()).ok());
      EXPECT_TRUE(one.output_bytes() == on_cpu.output_bytes()) << name_of(dtype) << ", " << columns << " columns";
    }
  }
}

/// Lengths, entries and positions that no cache has: neither rows nor their scales are written.
TEST_P(GpuRowScales, AreNotWrittenWithoutAPlace) {
  constexpr auto kLeast = std::numeric_limits<std::int32_t>::min();
  constexpr auto kMost = std::numeric_limits<std::int32_t>::max();
  AppendShape shape;
  shape.batch = 1;
  shape.head_dim = shape.head_dim_v = 16;
  shape.rotary_dim = 16;
  shape.cache = DType::int8;
  shape.row_scales = shape.positions = true;
  for (const bool paged : {false, true}) {
    shape.page_size = paged ? 8 : 0;
    shape.batch_idx = !paged;
    for (const std::int32_t number : {-1, 1000, kLeast, kMost}) {
      for (const char* const what : {"cache_seqlens", "position", "entry"}) {
        AppendCase one(shape, {}, 9);
        ASSERT_GE(one.arguments().k_new.shape[1], 1);
        const std::vector<std::byte> before = one.output_bytes();
        DeviceCopies copies(device());
        AppendArguments a = one.arguments([&](const GuardedTensor& tensor) { return copies.place(tensor); });
        const std::vector<std::int32_t> numbers(64, number);
        Result<gpu::DeviceMemory> memory = gpu::DeviceMemory::allocate(device(), numbers.size() * sizeof(number));
        ASSERT_TRUE(memory.ok() && memory->upload(numbers.data()).ok());
        ConstTensorView& changed = what[0] == 'c'   ? a.cache_seqlens
                                   : what[0] == 'p' ? a.positions
                                   : paged          ? a.page_table
                                                    : a.cache_batch_idx;
        changed.data = memory->data();
        for (std::size_t axis = 0; axis + 1 < static_cast<std::size_t>(changed.rank); ++axis) changed.strides[axis] = 8;
        const Status status = append(a, tested_execution(stream().get()));
        ASSERT_TRUE(status.ok()) << status.message();
        copies.download(one.outputs());
        EXPECT_TRUE(one.output_bytes() == before) << what << " " << number << (paged ? ", pages" : "");
      }
    }
  }
}

}  // namespace
}  // namespace strobe::test
