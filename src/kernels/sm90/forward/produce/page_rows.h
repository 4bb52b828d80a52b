// SPDX-License-Identifier: Apache-2.0
// Blocks of K or V out of pages, row by row, by cp.async.
#pragma once

#include "kernels/ptx/async_copy.h"
#include "kernels/sm90/forward/produce/keys.h"
#include "kernels/sm90/forward/produce/pages.h"
#include "kernels/sm90/forward/produce/stage.h"
#include "kernels/sm90/tile/pipeline.h"

namespace strobe::sm90::forward {

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

/// Blocks of K or V out of pages, by cp.async. WGMMAs read what threads copied once those have seen it arrive and
/// fenced: that is done for a block after the next one was issued, or before the warp has to wait for a stage.
template <Config C, bool values>
  requires(C.keys == KeySource::page_rows)
class KeyFeeder<C, values> {
 public:
  using StageBarriers = uint64_t (&)[C.stages];

  __device__ __forceinline__ KeyFeeder(const TensorMap&, const Params& params, const ScheduleOf<C>& schedule,
                                       unsigned char* smem, StageBarriers full, StageBarriers empty)
      : params_(params),
        pages_(params, schedule),
        ring_(smem + (values ? smem_plan(C).v : smem_plan(C).k)),
        full_(full),
        empty_(empty) {}

  __device__ __forceinline__ bool feed() {
    PageRows<C> rows;
    if (!pages_.next(rows)) {
      publish<0>();
      return false;
    }
    const bool is_free = __all_sync(kFullWarp, cuda::ptx::mbarrier_try_wait_parity(&empty_[at_.stage], at_.parity));
    if (!is_free) {
      publish<0>();
      wait<C>(empty_[at_.stage], at_.parity);
    }
    rows.template copy<2 * (values ? C.head_dim_v : C.head_dim)>(params_.cache, values ? params_.v : params_.k,
                                                                 2 * (values ? params_.head_dim_v : params_.head_dim),
                                                                 ring_ + at_.stage * kStageBytes);
    ptx::cp_async_commit_group();
    publish<1>();
    pending_ = at_.stage;
    at_.advance();
    return true;
  }

 private:
  static constexpr int kStageBytes = values ? smem_plan(C).v_bytes : smem_plan(C).k_bytes;
  static constexpr int kNone = -1;
  static_assert(!eight_bit(C));

  /// The block issued last but `behind`, if consumers have not got it yet.
  template <int behind>
  __device__ __forceinline__ void publish() {
    if (pending_ == kNone) {
      return;
    }
    ptx::cp_async_wait_group<behind>();
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    __syncwarp();
    arrive_once(full_[pending_]);
    pending_ = kNone;
  }

  const Params& params_;
  PageCursor<C, PageRows<C>> pages_;
  unsigned char* ring_;
  StageBarriers full_;
  StageBarriers empty_;
  RingPosition<C.stages> at_{0, 1};
  int pending_ = kNone;  // the stage of the last block, until consumers may read it
};

}  // namespace strobe::sm90::forward
