// SPDX-License-Identifier: Apache-2.0
#include "sm90/tensor_maps.h"

#include <algorithm>

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
  AxisExtent axes[kAxes];
  const auto at = [&](Axis axis) -> AxisExtent& { return axes[static_cast<int>(axis)]; };
  at(Axis::column) = {axis_of(tensor.extent(1), 1).extent, 1,
                      static_cast<std::uint32_t>(kPanelRowBytes / size_of(tensor.view.dtype))};
  // Nothing is read of a tensor without elements, whose strides may be any: its map has some that TMA takes.
  const auto stride = [&](std::int64_t own) { return tensor.empty() ? gpu::kAccessBytes : own; };
  at(Axis::row) = axis_of(tensor.rows(), stride(tensor.stride(3)), box.rows / box.heads);
  at(Axis::offset) = {1, at(Axis::row).stride, 1};
  at(Axis::head) = axis_of(tensor.extent(2), stride(tensor.stride(2)), box.heads);
  at(Axis::batch) = axis_of(tensor.batch(), stride(tensor.batch_stride()));

  runtime::TiledTensor tiled;
  tiled.data = const_cast<void*>(tensor.empty() || tensor.extent(1) == 0 ? any_memory : tensor.view.data);
  tiled.dtype = tensor.view.dtype;
  tiled.reads_ahead = box.reads_ahead;
  if (bound.columns) {
    tiled.data = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(tiled.data) -
                                         static_cast<std::uintptr_t>(bound.rows) * size_of(tiled.dtype));
    at(Axis::column).extent = static_cast<std::uint64_t>(std::max<std::int64_t>(bound.rows, 1));
    at(Axis::offset) = {static_cast<std::uint64_t>(tensor.extent(1) / kValueKeys) + 1,
                        static_cast<std::uint64_t>(kValueKeys), 1};
  } else if (bound.varlen) {
    const std::uint64_t row_bytes = at(Axis::row).stride * size_of(tiled.dtype);
    tiled.data = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(tiled.data) -
                                         static_cast<std::uintptr_t>(bound.rows) * row_bytes);
    at(Axis::row).extent = static_cast<std::uint64_t>(std::max<std::int64_t>(bound.rows, 1));
    at(Axis::offset).extent = static_cast<std::uint64_t>(tensor.rows()) + 1;
  }
  const AxisOrder order = axis_order(box.heads > 1);
  tiled.rank = kAxes;
  for (std::size_t i = 0; i < kAxes; ++i) {
    const AxisExtent& axis = at(order.axis[i]);
    tiled.extents[i] = axis.extent;
    tiled.strides[i] = axis.stride;
    tiled.box[i] = axis.box;
  }
  return runtime::encode_tensor_map(driver, tiled, map);
}

}  // namespace strobe::sm90
