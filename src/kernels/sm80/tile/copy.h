// SPDX-License-Identifier: Apache-2.0
// Rows of a tensor on their way to a tile in shared memory.
#pragma once

#include <cuda/std/cstdint>

#include "kernels/ptx/async_copy.h"
#include "kernels/sm80/tile/swizzled.h"

namespace strobe::sm80 {

using cuda::std::uint32_t;

/// Where a thread's column of chunks begins, in a tensor and in a tile: the CTA's threads copy rows of a tile, each its
/// own chunk of a panel.
template <typename Tile, int threads>
struct CopyLane {
  static constexpr int kRowsAtATime = threads / Tile::kChunks;
  static_assert(kRowsAtATime % 8 == 0 || (kRowsAtATime == 4 && Tile::kChunks == 8));

  __device__ __forceinline__ static int row() { return threadIdx.x % threads / Tile::kChunks; }
  __device__ __forceinline__ static int chunk() { return threadIdx.x % Tile::kChunks; }

  /// The offset of the row that is `after` rows after the thread's first.
  __device__ __forceinline__ static uint32_t offset(int after) {
    uint32_t first = Tile::offset(row(), chunk());
    if constexpr (kRowsAtATime == 4) {  // rows that are four apart are permuted differently
      first ^= after % 8 / 4 * 4 * kChunkBytes;
    }
    return first + after * Tile::kRowBytes;
  }
};

/// Copies 16 bytes; `whole_lines`: what lies beside them in 128 bytes is wanted, too.
template <bool whole_lines>
__device__ __forceinline__ void start_chunk(uint32_t to, const unsigned short* from, int bytes) {
  if constexpr (whole_lines) {
    ptx::cp_async_16(to, from, bytes);
  } else {
    ptx::cp_async_16_alone(to, from, bytes);
  }
}

/// Starts copying `rows` rows of a head, of which `left` exist, with `columns` columns of 16 bits each; what does not
/// exist becomes zeros. `data`: the first row.
template <typename Tile, int rows, int threads, bool whole_lines = true>
__device__ __forceinline__ void start_copy(uint32_t tile, const unsigned short* data, long long row_stride, int left,
                                           int columns) {
  using Lane = CopyLane<Tile, threads>;
  const unsigned short* from = data + Lane::row() * row_stride + Lane::chunk() * kChunkElements;
  const auto copy = [&](const auto& exists) {
#pragma unroll
    for (int i = 0; i < rows; i += Lane::kRowsAtATime) {
      if (i + Lane::kRowsAtATime > rows && i + Lane::row() >= rows) {
        break;
      }
#pragma unroll
      for (int panel = 0; panel < Tile::kPanels; ++panel) {
        start_chunk<whole_lines>(tile + Lane::offset(i) + panel * Tile::kPanelBytes, from + panel * Tile::kPanelColumns,
                                 exists(i, panel) ? kChunkBytes : 0);
      }
      from += Lane::kRowsAtATime * row_stride;
    }
  };
  if (left >= rows && columns == Tile::kPanels * Tile::kPanelColumns) {
    copy([](int, int) { return true; });
  } else {
    copy([=](int row, int panel) {
      return Lane::row() + row < left && (panel * Tile::kChunks + Lane::chunk()) * kChunkElements < columns;
    });
  }
}

/// One warp copies rows that lie anywhere, and have been found: row_of(row) is an address that may be read, whether the
/// row exists or not; what does not exist becomes zeros.
template <typename Tile, int rows, bool whole_lines, typename RowOf, typename Exists>
__device__ __forceinline__ void start_found_copy(uint32_t tile, int columns, const RowOf& row_of,
                                                 const Exists& exists) {
  constexpr int kThreads = 32;
  using Lane = CopyLane<Tile, kThreads>;
  static_assert(rows % Lane::kRowsAtATime == 0);
#pragma unroll
  for (int i = 0; i < rows; i += Lane::kRowsAtATime) {
    const int row = i + Lane::row();
    const unsigned short* const from = row_of(row) + Lane::chunk() * kChunkElements;
    const bool found = exists(row);
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
      const int column = panel * Tile::kPanelColumns + Lane::chunk() * kChunkElements;
      const bool has_column = column < columns;
      start_chunk<whole_lines>(tile + Lane::offset(i) + panel * Tile::kPanelBytes,
                               from + (has_column ? panel * Tile::kPanelColumns : -Lane::chunk() * kChunkElements),
                               found && has_column ? kChunkBytes : 0);
    }
  }
}

/// Copies rows that lie anywhere to a tile: row_of(row) is where a row of the tile begins, null where it does not
/// exist. `memory`: any address, which copies of nothing name. All rows are found before the first is copied: page
/// tables are read meanwhile.
template <typename Tile, int rows, int threads, bool whole_lines = true, typename RowOf>
__device__ __forceinline__ void start_scattered_copy(uint32_t tile, const unsigned short* memory, int columns,
                                                     const RowOf& row_of) {
  using Lane = CopyLane<Tile, threads>;
  constexpr int kOwnRows = (rows + Lane::kRowsAtATime - 1) / Lane::kRowsAtATime;
  const unsigned short* from[kOwnRows];
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    const int row = i * Lane::kRowsAtATime + Lane::row();
    from[i] = row < rows ? row_of(row) : nullptr;
  }
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    if ((i + 1) * Lane::kRowsAtATime > rows && i * Lane::kRowsAtATime + Lane::row() >= rows) {
      break;
    }
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
      const int column = (panel * Tile::kChunks + Lane::chunk()) * kChunkElements;
      const bool exists = from[i] != nullptr && column < columns;
      start_chunk<whole_lines>(tile + Lane::offset(i * Lane::kRowsAtATime) + panel * Tile::kPanelBytes,
                               exists ? from[i] + column : memory, exists ? kChunkBytes : 0);
    }
  }
}

}  // namespace strobe::sm80
