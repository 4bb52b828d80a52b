// SPDX-License-Identifier: Apache-2.0
// Blocks of K or V out of pages, by a warp. What a lane needs of the page table it reads before it waits for a stage.
#pragma once

#include "kernels/ptx/async_copy.h"
#include "kernels/sm90/forward/cache_place.h"
#include "kernels/sm90/forward/key_cursor.h"
#include "kernels/sm90/forward/smem.h"
#include "kernels/sm90/tile/coordinates.h"
#include "kernels/sm90/tile/pipeline.h"

namespace strobe::sm90::forward {

/// What the page table says of a block, read when the block before is on its way. Every lane has some of its pieces,
/// of one or more rows each.
template <Config C, int least_rows>
class PageNumbers {
 public:
  static constexpr int kEach = (C.block_n + kWarpSize * least_rows - 1) / (kWarpSize * least_rows);

  PageNumbers() = default;
  __device__ __forceinline__ PageNumbers(const CacheParams& cache, const KeyCursor<C>& cursor, int piece_rows)
      : head_(cursor.head()),
        first_(cursor.work().k.start + cursor.block() * C.block_n),
        end_(cursor.work().k.start + cursor.work().k.used) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = row_in_block(i, piece_rows);
      numbers_[i] = kNoEntry;
      if (row < C.block_n && first_ + row < end_) {
        numbers_[i] = page_number(cache, cursor.work().tile.sequence, first_ + row);
      }
    }
  }

  /// The first row of this lane's i-th piece; block_n or more where it has none.
  __device__ __forceinline__ static int row_in_block(int i, int piece_rows) {
    return (i * kWarpSize + static_cast<int>(threadIdx.x % kWarpSize)) * piece_rows;
  }
  __device__ __forceinline__ CachePlace place(const CacheParams& cache, int i, int piece_rows) const {
    return {existing(cache, numbers_[i]), cache.by_page_size.remainder(first_ + row_in_block(i, piece_rows))};
  }
  __device__ __forceinline__ int head() const { return head_; }
  __device__ __forceinline__ int row(int i, int piece_rows) const { return first_ + row_in_block(i, piece_rows); }
  __device__ __forceinline__ int end() const { return end_; }

 private:
  int head_, first_, end_;
  int numbers_[kEach];
};

/// By TMA: a lane brings a box of rows that lie in one page.
///
/// The maps are those of varlen tensors (tile/tensor_map.h), a page in the place of a sequence: of a sequence's last
/// page boxes reach no row behind its end.
template <Config C>
class PageBoxes {
 public:
  PageBoxes() = default;
  __device__ __forceinline__ PageBoxes(const Params& params, const KeyCursor<C>& cursor)
      : numbers_(params.cache, cursor, params.cache.box_rows) {}

  /// Where the box lies: all that can be said before a stage is free.
  __device__ __forceinline__ void find(const CacheParams& cache) {
    const int page_size = static_cast<int>(cache.by_page_size.divisor);
    const CachePlace place = numbers_.place(cache, 0, cache.box_rows);
    const RowStart first = page_start(numbers_.row(0, cache.box_rows), place.row, numbers_.end(), page_size);
    row_ = first.row + place.row;
    offset_ = first.offset;
    page_ = place.entry;
  }

  /// `panels` panels of `columns` columns each, once the stage is free.
  __device__ __forceinline__ void load(const CacheParams& cache, const TensorMap& map, int panels, int columns,
                                       unsigned char* stage, uint64_t& full) const {
    constexpr int kPanelBytes = C.block_n * kPanelRowBytes;
    const int row_in_block = numbers_.row_in_block(0, cache.box_rows);
    unsigned char* const destination = stage + row_in_block * kPanelRowBytes;
    const int box_bytes = cache.box_rows * kPanelRowBytes;
    const bool is_found = page_ != kNoEntry;
    if (!is_found && row_in_block < C.block_n) {
#pragma unroll 1
      for (int panel = 0; panel < panels; ++panel) {
        store_zeros(destination + panel * kPanelBytes, box_bytes);
      }
    }
    const int found = __popc(__ballot_sync(kFullWarp, is_found));
    __syncwarp();  // all lanes' zeros are stored
    if (threadIdx.x % kWarpSize == 0) {
      expect(full, panels * found * box_bytes);
    }
    __syncwarp();
    if (is_found) {
      for (int panel = 0; panel < panels; ++panel) {
        const BoxStart box{
            .column = panel * columns, .row = row_, .offset = offset_, .head = numbers_.head(), .batch = page_};
        load_panel<false>(map, box, destination + panel * kPanelBytes, full);
      }
    }
  }

 private:
  PageNumbers<C, kLeastBoxRows> numbers_;
  int row_, offset_, page_;  // of the map
  static_assert(PageNumbers<C, kLeastBoxRows>::kEach == 1);
};

/// By cp.async: a lane finds every 32nd row, and eight lanes copy 128 bytes of a row, into the swizzle that TMA writes.
template <Config C>
class PageRows {
 public:
  PageRows() = default;
  __device__ __forceinline__ PageRows(const Params& params, const KeyCursor<C>& cursor)
      : numbers_(params.cache, cursor, 1) {}

  /// `row_bytes` of each row, once the stage is free. Rows that do not exist become zeros.
  template <int row_bytes>
  __device__ __forceinline__ void copy(const CacheParams& cache, const Rows& rows, int existing_bytes,
                                       unsigned char* stage) const {
    constexpr int kPieces = row_bytes / kPieceBytes;
    constexpr int kPanels = (kPieces + kPanelPieces - 1) / kPanelPieces;
    const auto* const data = reinterpret_cast<const unsigned char*>(rows.data);
    const int lane = threadIdx.x % kWarpSize;
    const int piece = lane % kPanelPieces;
    const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(stage));
#pragma unroll
    for (int i = 0; i < numbers_.kEach; ++i) {
      const CachePlace place = numbers_.place(cache, i, 1);
      const long long own =
          place.entry == kNoEntry ? -1 : rows.offset(place.entry, place.row, numbers_.head()) * kElementBytes;
#pragma unroll
      for (int j = 0; j < kPanelPieces; ++j) {
        const int from = j * kRowsAtOnce + lane / kPanelPieces;
        const long long offset = __shfl_sync(kFullWarp, own, from);
        const int row = i * kWarpSize + from;
        if (C.block_n % kWarpSize == 0 || row < C.block_n) {
#pragma unroll
          for (int panel = 0; panel < kPanels; ++panel) {
            const int at = (panel * kPanelPieces + piece) * kPieceBytes;
            if ((panel + 1) * kPanelPieces <= kPieces || at < row_bytes) {
              const bool exists = offset >= 0 && at < existing_bytes;
              ptx::cp_async_16(to + panel * C.block_n * kPanelRowBytes + piece_offset(row, piece),
                               data + (exists ? offset + at : 0), exists ? kPieceBytes : 0);
            }
          }
        }
      }
    }
  }

 private:
  static constexpr int kRowsAtOnce = kWarpSize / kPanelPieces;
  static constexpr int kElementBytes = converts(C) ? 1 : 2;

  PageNumbers<C, 1> numbers_;
};

}  // namespace strobe::sm90::forward
