// SPDX-License-Identifier: Apache-2.0
// Blocks of K or V out of pages, by TMA.
#pragma once

#include "kernels/sm90/forward/produce/keys.h"
#include "kernels/sm90/forward/produce/pages.h"
#include "kernels/sm90/forward/produce/stage.h"
#include "kernels/sm90/tile/coordinates.h"
#include "kernels/sm90/tile/pipeline.h"

namespace strobe::sm90::forward {

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

  /// Once the stage is free.
  __device__ __forceinline__ void load(const CacheParams& cache, const TensorMap& map, const PanelRange& panels,
                                       unsigned char* stage, uint64_t& full) const {
    constexpr int kPanelBytes = C.block_n * kPanelRowBytes;
    const int row_in_block = numbers_.row_in_block(0, cache.box_rows);
    unsigned char* const destination = stage + row_in_block * kPanelRowBytes;
    const int box_bytes = cache.box_rows * kPanelRowBytes;
    const bool is_found = page_ != kNoEntry;
    if (!is_found && row_in_block < C.block_n) {
#pragma unroll 1
      for (int panel = 0; panel < panels.count; ++panel) {
        store_zeros(destination + panel * kPanelBytes, box_bytes);
      }
    }
    const int found = __popc(__ballot_sync(kFullWarp, is_found));
    __syncwarp();  // all lanes' zeros are stored
    if (threadIdx.x % kWarpSize == 0) {
      expect(full, panels.count * found * box_bytes);
    } else if constexpr (box_writers(C) > 1) {
      cuda::ptx::mbarrier_arrive(&full);
    }
    __syncwarp();
    if (is_found) {
      for (int panel = 0; panel < panels.count; ++panel) {
        const BoxStart box{
            .column = panels.column(panel), .row = row_, .offset = offset_, .head = numbers_.head(), .batch = page_};
        load_panel<false>(map, box, destination + panel * kPanelBytes, full);
      }
    }
  }

 private:
  PageNumbers<C, kLeastBoxRows> numbers_;
  int row_, offset_, page_;  // of the map
  static_assert(PageNumbers<C, kLeastBoxRows>::kEach == 1);
};

/// By TMA: a block that lies in one page.
template <Config C>
class PageBlock {
 public:
  PageBlock() = default;
  __device__ __forceinline__ PageBlock(const Params& params, const KeyCursor<C>& cursor)
      : head_(cursor.head()),
        row_(cursor.work().k.start + cursor.block() * C.block_n),
        end_(cursor.work().k.start + cursor.work().k.used),
        page_(page_number(params.cache, cursor.work().tile.sequence, row_)) {}

  /// As PageBoxes::find. What the table says is the same for all lanes, which the compiler learns here.
  __device__ __forceinline__ void find(const CacheParams& cache) {
    const int page_size = static_cast<int>(cache.by_page_size.divisor);
    const int row_in_page = cache.by_page_size.remainder(row_);
    const RowStart first = page_start(row_, row_in_page, end_, page_size);
    page_ = existing(cache, __shfl_sync(kFullWarp, page_, 0));
    row_ = __shfl_sync(kFullWarp, first.row + row_in_page, 0);
    offset_ = __shfl_sync(kFullWarp, first.offset, 0);
  }

  __device__ __forceinline__ void load(const CacheParams&, const TensorMap& map, const PanelRange& panels,
                                       unsigned char* stage, uint64_t& full) const {
    if (ptx::elect_one()) {
      load_panels(map, page_ != kNoEntry, panels.count, C.block_n * kPanelRowBytes, stage, full, [&](int panel) {
        return BoxStart{.column = panels.column(panel), .row = row_, .offset = offset_, .head = head_, .batch = page_};
      });
    }
  }

 private:
  int head_, row_, end_, offset_, page_;
};

template <Config C>
struct PagedBlockOf {
  using Type = PageBoxes<C>;
};
template <Config C>
  requires(C.keys == KeySource::page_blocks)
struct PagedBlockOf<C> {
  using Type = PageBlock<C>;
};
template <Config C>
using PagedBlock = typename PagedBlockOf<C>::Type;

/// Blocks of K or V out of pages, by TMA.
template <Config C, bool values>
  requires(in_page_boxes(C))
class KeyFeeder<C, values> {
 public:
  using StageBarriers = uint64_t (&)[C.stages];

  __device__ __forceinline__ KeyFeeder(const TensorMap& map, const Params& params, const ScheduleOf<C>& schedule,
                                       unsigned char* smem, StageBarriers full, StageBarriers empty)
      : map_(map),
        params_(params),
        pages_(params, schedule),
        ring_(smem + (values ? smem_plan(C).v : smem_plan(C).k)),
        full_(full),
        empty_(empty) {}

  __device__ __forceinline__ bool feed() {
    PagedBlock<C> block;
    if (!pages_.next(block)) {
      return false;
    }
    block.find(params_.cache);
    wait<C>(empty_[at_.stage], at_.parity);
    block.load(params_.cache, map_, {.count = kPanels, .columns = kColumns<C>}, ring_ + at_.stage * kStageBytes,
               full_[at_.stage]);
    at_.advance();
    return true;
  }

 private:
  static constexpr int kPanels = values ? panels(C.head_dim_v) : kRowPanels<C>;
  static constexpr int kStageBytes = values ? smem_plan(C).v_bytes : smem_plan(C).k_bytes;
  static_assert(!eight_bit(C));

  const TensorMap& map_;
  const Params& params_;
  PageCursor<C, PagedBlock<C>> pages_;
  unsigned char* ring_;
  StageBarriers full_;
  StageBarriers empty_;
  RingPosition<C.stages> at_{0, 1};
};

}  // namespace strobe::sm90::forward
