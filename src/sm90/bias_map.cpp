// SPDX-License-Identifier: Apache-2.0
#include "sm90/bias_map.h"

#include <algorithm>

#include "gpu/params/rows.h"

namespace strobe::sm90 {
namespace {

constexpr std::size_t kOuterAxes = 3;  // of a bias: all but the keys

}  // namespace

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
    tiled.strides[to] =
        static_cast<std::uint64_t>(stepped[axis] ? bias.strides[axis] : gpu::access_elements(bias.dtype));
    tiled.box[to] = 1;
  }
  tiled.box[1] = static_cast<std::uint32_t>(boxes.rows);
  return runtime::encode_tensor_map(driver, tiled, map);
}

}  // namespace strobe::sm90
