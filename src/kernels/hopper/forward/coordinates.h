// SPDX-License-Identifier: Apache-2.0
// Where the boxes of a tile lie in the tensors' maps.
#pragma once

#include <cuda/ptx>

#include "kernels/hopper/forward/tile_work.h"
#include "kernels/hopper/tile/tensor_map.h"

namespace strobe::hopper::forward {

namespace cptx = cuda::ptx;

/// The first row of a sequence.
struct SequenceStart {
  RowStart first;
  int batch;

  __device__ __forceinline__ BoxStart box(int column, int row, int head) const {
    return {.column = column, .row = first.row + row, .offset = first.offset, .head = head, .batch = batch};
  }
};

/// Of the first `count` rows of Q or O.
template <Config C>
__device__ __forceinline__ SequenceStart query_start(const Params& params, const TileWork& work, int count) {
  if constexpr (C.rule.varlen) {
    return {varlen_row(work.q.start, count, params.sequences.seqlen_q),
            params.sequences.cu_seqlens_q != nullptr ? 0 : work.tile.sequence};
  } else {
    return {{0, 0}, work.tile.sequence};
  }
}

/// Of the keys in use.
template <Config C>
__device__ __forceinline__ SequenceStart key_start(const Params& params, const TileWork& work) {
  if constexpr (C.rule.varlen) {
    return {varlen_row(work.k.start, work.k.used, params.sequences.seqlen_k),
            params.sequences.cu_seqlens_k != nullptr ? 0 : work.tile.sequence};
  } else {
    return {{0, 0}, work.tile.sequence};
  }
}

/// A box of Q or O that begins with a tile's row.
template <Config C>
__device__ __forceinline__ BoxStart query_box(const SequenceStart& start, int column, int row, int head) {
  return start.box(column, row / C.packed_heads, head * C.packed_heads + row % C.packed_heads);
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

}  // namespace strobe::hopper::forward
