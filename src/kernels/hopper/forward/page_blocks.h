// SPDX-License-Identifier: Apache-2.0
// Blocks of K or V out of pages, by a warp. What a lane needs of the page table it reads before it waits for a stage.
#pragma once

#include "kernels/hopper/forward/cache_place.h"
#include "kernels/hopper/forward/key_cursor.h"
#include "kernels/hopper/forward/smem.h"
#include "kernels/hopper/tile/coordinates.h"
#include "kernels/hopper/tile/pipeline.h"
#include "kernels/math/async_copy.h"

namespace strobe::hopper::forward {

/// By TMA: a lane brings a box of rows that lie in one page.
///
/// The maps are those of varlen tensors (tile/tensor_map.h), a page in the place of a sequence: of a sequence's last
/// page boxes reach no row behind its end.
template <Config C>
class PageBoxes {
 public:
  __device__ __forceinline__ PageBoxes(const Params& params, const KeyCursor<C>& cursor) : head_(cursor.head()) {
    const CacheParams& cache = params.cache;
    const TileWork& work = cursor.work();
    const int page_size = static_cast<int>(cache.by_page_size.divisor);
    row_in_block_ = static_cast<int>(threadIdx.x % kWarpSize) * cache.box_rows;
    const int row = cursor.block() * C.block_n + row_in_block_;
    page_ = no_rows(page_size);
    if (row_in_block_ < C.block_n && row < work.k.used) {
      const CachePlace place = cache_place<C>(cache, work.tile.sequence, row);
      if (place.entry != kNoEntry) {
        page_ = {page_start(row, place.row, work.k.used, page_size), place.entry};
        row_in_page_ = place.row;
      }
    }
  }

  /// `panels` panels of `columns` columns each, once the stage is free.
  __device__ __forceinline__ void load(const TensorMap& map, int panels, int columns, unsigned char* stage,
                                       uint64_t& full) const {
    constexpr int kPanelBytes = C.block_n * kPanelRowBytes;
    if (threadIdx.x % kWarpSize == 0) {
      expect(full, panels * kPanelBytes);
    }
    __syncwarp();
    if (row_in_block_ < C.block_n) {
      unsigned char* const destination = stage + row_in_block_ * kPanelRowBytes;
      for (int panel = 0; panel < panels; ++panel) {
        load_panel<false>(map, page_.box(panel * columns, row_in_page_, head_), destination + panel * kPanelBytes,
                          full);
      }
    }
  }

 private:
  SequenceStart page_;
  int row_in_block_, row_in_page_ = 0;
  const int head_;
};

/// By cp.async: a lane finds every 32nd row, and eight lanes copy 128 bytes of a row, into the swizzle that TMA writes.
template <Config C>
class PageRows {
 public:
  __device__ __forceinline__ PageRows(const Params& params, const Rows& rows, const KeyCursor<C>& cursor) {
    const TileWork& work = cursor.work();
    data_ = reinterpret_cast<const unsigned char*>(rows.data);
    const int head = cursor.head();
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int key = cursor.block() * C.block_n + i * kWarpSize + static_cast<int>(threadIdx.x % kWarpSize);
      offset_[i] = -1;
      if (key < work.k.used) {
        const CachePlace place = cache_place<C>(params.cache, work.tile.sequence, work.k.start + key);
        if (place.entry != kNoEntry) {
          offset_[i] = rows.offset(place.entry, place.row, head) * kElementBytes;
        }
      }
    }
  }

  /// `row_bytes` of each row, once the stage is free. Rows that do not exist become zeros.
  template <int row_bytes>
  __device__ __forceinline__ void copy(int existing_bytes, unsigned char* stage) const {
    constexpr int kPieces = row_bytes / kPieceBytes;
    constexpr int kPanels = (kPieces + kPanelPieces - 1) / kPanelPieces;
    const int lane = threadIdx.x % kWarpSize;
    const int piece = lane % kPanelPieces;
    const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(stage));
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll 2
      for (int j = 0; j < kPanelPieces; ++j) {
        const int from = j * kRowsAtOnce + lane / kPanelPieces;
        const long long offset = __shfl_sync(kFullWarp, offset_[i], from);
        const int row = i * kWarpSize + from;
        if (C.block_n % kWarpSize == 0 || row < C.block_n) {
#pragma unroll
          for (int panel = 0; panel < kPanels; ++panel) {
            const int at = (panel * kPanelPieces + piece) * kPieceBytes;
            if ((panel + 1) * kPanelPieces <= kPieces || at < row_bytes) {
              const bool exists = offset >= 0 && at < existing_bytes;
              ptx::cp_async_16(to + panel * C.block_n * kPanelRowBytes + piece_offset(row, piece),
                               data_ + (exists ? offset + at : 0), exists ? kPieceBytes : 0);
            }
          }
        }
      }
    }
  }

 private:
  static constexpr int kRowsAtOnce = kWarpSize / kPanelPieces;
  static constexpr int kOwnRows = (C.block_n + kWarpSize - 1) / kWarpSize;
  static constexpr int kElementBytes = converts(C) ? 1 : 2;

  const unsigned char* data_;
  long long offset_[kOwnRows];  // bytes; negative: no such row
};

}  // namespace strobe::hopper::forward
