// SPDX-License-Identifier: Apache-2.0
#include "sm90/bias_map.h"

#include <algorithm>

#include "gpu/params/rows.h"

namespace strobe::sm90 {
namespace {

constexpr std::size_t kOuterAxes = 3;  // of a bias: all but the keys

/// Elements in the unit of TMA's strides.
std::int64_t unit_of(const ConstTensorView& bias) {
  return gpu::kAccessBytes / static_cast<std::int64_t>(size_of(bias.dtype));
}

}  // namespace

bool bias_is_aligned(const ConstTensorView& bias) {
  bool aligned = reinterpret_cast<std::uintptr_t>(bias.data) % static_cast<std::uintptr_t>(gpu::kAccessBytes) == 0;
  for (std::size_t axis = 0; axis < kOuterAxes; ++axis) {
    const std::int64_t stride = bias.strides[axis];
    aligned = aligned && (bias.shape[axis] <= 1 || (stride >= 0 && stride % unit_of(bias) == 0));
  }
  return aligned;
}

BiasBoxParams bias_boxes(const AttentionProblem& problem, const ConstTensorView& bias, int rows) {
  return {.per_batch = problem.modifiers.bias_per_batch && bias.strides[0] != 0 ? 1 : 0,
          .per_head = problem.modifiers.bias_per_head && bias.strides[1] != 0 ? 1 : 0,
          .rows = bias.shape[2] == 1 || bias.strides[2] == 0 ? 1 : rows};
}

Status encode_bias(const runtime::Driver& driver, const ConstTensorView& bias, const BiasBoxParams& boxes, int columns,
                   runtime::Swizzle swizzle, TensorMap& map) {
  runtime::TiledTensor tiled;
  tiled.data = const_cast<void*>(bias.data);
  tiled.dtype = bias.dtype;
  tiled.rank = 1 + kOuterAxes;
  tiled.swizzle = swizzle;
  tiled.extents[0] = static_cast<std::uint64_t>(bias.shape[3]);
  tiled.strides[0] = 1;
  tiled.box[0] = static_cast<std::uint32_t>(columns);
  const bool stepped[kOuterAxes] = {boxes.per_batch != 0, boxes.per_head != 0, boxes.rows > 1};
  for (std::size_t axis = 0; axis < kOuterAxes; ++axis) {
    const std::size_t to = kOuterAxes - axis;
    tiled.extents[to] = stepped[axis] ? static_cast<std::uint64_t>(bias.shape[axis]) : 1;
    tiled.strides[to] = static_cast<std::uint64_t>(stepped[axis] ? bias.strides[axis] : unit_of(bias));
    tiled.box[to] = 1;
  }
  tiled.box[1] = static_cast<std::uint32_t>(boxes.rows);
  return runtime::encode_tensor_map(driver, tiled, map);
}

}  // namespace strobe::sm90
