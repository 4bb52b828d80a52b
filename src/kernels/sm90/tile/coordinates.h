// SPDX-License-Identifier: Apache-2.0
// Where boxes of a sequence lie in the tensors' maps, and loads of boxes.
#pragma once

#include "kernels/sequence/visible_keys.h"
#include "kernels/sm90/ptx/cuda_ptx.h"
#include "kernels/sm90/tile/tensor_map.h"

namespace strobe::sm90 {

namespace cptx = cuda::ptx;

/// The first row of a sequence.
struct SequenceStart {
  RowStart first;
  int batch;

  __device__ __forceinline__ BoxStart box(int column, int row, int head) const {
    return {.column = column, .row = first.row + row, .offset = first.offset, .head = head, .batch = batch};
  }
};

/// Of the first `count` rows of one side of a sequence: boxes reach no row behind them. `bound` is that of the map's
/// row axis, `packed` whether the side's sequences lie one behind the other.
template <bool varlen>
__device__ __forceinline__ SequenceStart sequence_start(const sequence::SequenceRows& rows, int count, int bound,
                                                        bool packed, int sequence) {
  if constexpr (varlen) {
    return {varlen_row(rows.start, count, bound), packed ? 0 : sequence};
  } else {
    return {{0, 0}, sequence};
  }
}

struct Coordinates {
  cuda::std::int32_t at[kAxes];
};

/// The coordinates of a box in the order of the map's axes.
template <bool packed_heads>
__device__ __forceinline__ Coordinates coordinates_of(const BoxStart& box) {
  constexpr AxisOrder kOrder = axis_order(packed_heads);
  Coordinates coordinates;
#pragma unroll
  for (int i = 0; i < kAxes; ++i) {
    coordinates.at[i] = box.at(kOrder.axis[i]);
  }
  return coordinates;
}

/// One box of 64 columns to shared memory.
template <bool packed_heads>
__device__ __forceinline__ void load_panel(const TensorMap& map, const BoxStart& box, unsigned char* destination,
                                           cuda::std::uint64_t& full) {
  const Coordinates coordinates = coordinates_of<packed_heads>(box);
  cptx::cp_async_bulk_tensor(cptx::space_cluster, cptx::space_global, destination, &map, coordinates.at, &full);
}

}  // namespace strobe::sm90
