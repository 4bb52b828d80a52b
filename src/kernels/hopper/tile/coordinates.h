// SPDX-License-Identifier: Apache-2.0
// Where boxes of a sequence lie in the tensors' maps, and loads of boxes.
#pragma once

#include "kernels/hopper/ptx/cuda_ptx.h"
#include "kernels/hopper/tile/tensor_map.h"
#include "kernels/score/visible_keys.h"

namespace strobe::hopper {

namespace cptx = cuda::ptx;

/// The first row of a sequence.
struct SequenceStart {
  RowStart first;
  int batch;
  int column = 0;  // the first

  __device__ __forceinline__ BoxStart box(int column_in_row, int row, int head) const {
    return {.column = column + column_in_row,
            .row = first.row + row,
            .offset = first.offset,
            .head = head,
            .batch = batch};
  }
};

/// Of the first `count` rows of one side of a sequence: boxes reach no row behind them. `bound` is that of the map's
/// row axis, `packed` whether the side's sequences lie one behind the other.
template <bool varlen>
__device__ __forceinline__ SequenceStart sequence_start(const score::SequenceRows& rows, int count, int bound,
                                                        bool packed, int sequence) {
  if constexpr (varlen) {
    return {varlen_row(rows.start, count, bound), packed ? 0 : sequence};
  } else {
    return {{0, 0}, sequence};
  }
}

/// Rows of zeros: columns of batch 0 that no head has. Rows or batches outside a map would be zeros, too, but of a box
/// that is wholly outside TMA looks up an address all the same, and faults where no memory is mapped: that of rows which
/// a varlen map has before its tensor.
template <bool varlen>
__device__ __forceinline__ SequenceStart no_rows(int bound) {
  constexpr int kNoColumn = 256;
  return {varlen ? varlen_row(0, bound, bound) : RowStart{0, 0}, 0, kNoColumn};
}

struct Coordinates {
  cuda::std::int32_t at[kAxes];
};

/// In the order of the map's axes.
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

}  // namespace strobe::hopper
