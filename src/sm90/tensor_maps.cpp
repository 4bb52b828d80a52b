// SPDX-License-Identifier: Apache-2.0
#include "sm90/tensor_maps.h"

#include <algorithm>
#include <cstddef>

#include "call/eight_bit.h"
#include "kernels/sm90/tile/panel.h"
#include "runtime/tensor_map.h"

namespace strobe::sm90 {
namespace {

struct AxisExtent {
  std::uint64_t extent, stride;
  std::uint32_t box;
};

AxisExtent axis_of(std::int64_t extent, std::int64_t stride, int box = 1) {
  // A stride that is never stepped along must still be one that TMA takes.
  return {static_cast<std::uint64_t>(std::max<std::int64_t>(extent, 1)),
          static_cast<std::uint64_t>(extent > 1 ? stride : gpu::kAccessBytes), static_cast<std::uint32_t>(box)};
}

}  // namespace

Status encode(const runtime::Driver& driver, const gpu::RowsView& tensor, const VarlenBound& bound, const Box& box,
              const void* any_memory, TensorMap& map) {
  const std::size_t element_bytes = size_of(tensor.view.dtype);
  AxisExtent axes[kAxes];
  const auto at = [&](Axis axis) -> AxisExtent& { return axes[static_cast<int>(axis)]; };
  // Nothing is read of a tensor without elements, whose strides may be any: its map has some that TMA takes.
  const bool empty = tensor.empty();
  const auto stride = [&](std::int64_t own) { return empty ? gpu::kAccessBytes : own; };
  at(Axis::column) = {axis_of(tensor.extent(1), 1).extent, 1,
                      static_cast<std::uint32_t>(gpu::elements_in(kPanelRowBytes, tensor.view.dtype))};
  at(Axis::row) = axis_of(tensor.rows(), stride(tensor.stride(3)), box.heads > 1 ? box.rows / box.heads : box.rows);
  at(Axis::offset) = {1, at(Axis::row).stride, 1};
  at(Axis::head) = axis_of(tensor.extent(2), stride(tensor.stride(2)), box.heads);
  at(Axis::batch) = axis_of(tensor.batch(), stride(tensor.batch_stride()));

  std::uint64_t elements_before = 0;  // how far before the tensor its map begins
  if (bound.columns) {
    elements_before = static_cast<std::uint64_t>(bound.rows);
    at(Axis::column).extent = static_cast<std::uint64_t>(std::max<std::int64_t>(bound.rows, 1));
    at(Axis::offset) = {static_cast<std::uint64_t>(tensor.extent(1) / kValueKeys) + 1,
                        static_cast<std::uint64_t>(kValueKeys), 1};
  } else if (bound.varlen) {
    elements_before = static_cast<std::uint64_t>(bound.rows) * at(Axis::row).stride;
    at(Axis::row).extent = static_cast<std::uint64_t>(std::max<std::int64_t>(bound.rows, 1));
    at(Axis::offset).extent = static_cast<std::uint64_t>(tensor.rows()) + 1;
  }
  const void* const data = empty || tensor.extent(1) == 0 ? any_memory : tensor.view.data;
  const AxisOrder order = axis_order(box.heads > 1);
  const auto of = [&](int i) -> const AxisExtent& { return at(order.axis[i]); };
  // All at once: to clear it first takes as long as the rest.
  const runtime::TiledTensor tiled{
      .data = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(data) - elements_before * element_bytes),
      .dtype = tensor.view.dtype,
      .rank = kAxes,
      .extents = {of(0).extent, of(1).extent, of(2).extent, of(3).extent, of(4).extent},
      .strides = {of(0).stride, of(1).stride, of(2).stride, of(3).stride, of(4).stride},
      .box = {of(0).box, of(1).box, of(2).box, of(3).box, of(4).box},
      .swizzle = runtime::Swizzle::bytes_128,
      .reads_ahead = box.reads_ahead,
      .whole_lines = tensor.extent(1) * element_bytes % 128 == 0};
  return runtime::encode_tensor_map(driver, tiled, map);
}

}  // namespace strobe::sm90
