// SPDX-License-Identifier: Apache-2.0
// Wide loops: K and V out of pages row by row, by cp.async. A row is more than one warp copies in the time that its
// block takes: warps take turns at the panels of both.
#pragma once

#include "kernels/ptx/async_copy.h"
#include "kernels/sm90/forward/produce/pages.h"
#include "kernels/sm90/forward/produce/query.h"

namespace strobe::sm90::forward {

/// The rows of a block: a lane finds every 32nd.
template <Config C>
class BlockRows {
 public:
  __device__ __forceinline__ BlockRows(const CacheParams& cache, const PageNumbers<C, 1>& numbers)
      : head_(numbers.head()) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      places_[i] = numbers.place(cache, i, 1);
    }
  }

  /// 64 columns from `column` on, of which those before `columns` exist. Rows that do not exist become zeros. Eight
  /// lanes copy a row, into the swizzle that TMA writes.
  __device__ __forceinline__ void copy(const Rows& rows, int column, int columns, unsigned char* panel) const {
    const auto* const data = reinterpret_cast<const unsigned char*>(rows.data);
    const int lane = threadIdx.x % kWarpSize;
    const int piece = lane % kPanelPieces;
    const int at = column + piece * (kPieceBytes / 2);
    const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(panel));
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const CachePlace& place = places_[i];
      const long long own = place.entry == kNoEntry ? -1 : 2 * rows.offset(place.entry, place.row, head_);
#pragma unroll 2
      for (int j = 0; j < kPanelPieces; ++j) {
        const int from = j * kRowsAtOnce + lane / kPanelPieces;
        const long long offset = __shfl_sync(kFullWarp, own, from);
        const bool exists = offset >= 0 && at < columns;
        ptx::cp_async_16(to + piece_offset(i * kWarpSize + from, piece), data + (exists ? offset + 2 * at : 0),
                         exists ? kPieceBytes : 0);
      }
    }
  }

 private:
  static constexpr int kEach = PageNumbers<C, 1>::kEach;
  static constexpr int kRowsAtOnce = kWarpSize / kPanelPieces;
  static_assert(C.block_n % kWarpSize == 0);

  const int head_;
  CachePlace places_[kEach];
};

/// One of kRowWarps warps: each walks over all blocks and brings every so many-th panel of Q, K and V. At the barriers
/// of the others' panels it arrives at once: a phase waits for all of them, so that none is overtaken by one whose
/// parity is the same. WGMMAs read what threads copied once those have seen it arrive and fenced: that is done for a
/// panel after the next one was issued, or before the warp has to wait for a stage.
template <Config C>
class WideRowsFeeder {
 public:
  /// `turn`: panels before this warp's first.
  __device__ __forceinline__ WideRowsFeeder(const Context<C>& context, int turn) : context_(context), turn_(turn) {}

  /// Every block of every tile of this CTA. Its pages are read when the block before is being copied.
  __device__ __forceinline__ void run() {
    const Params& params = context_.params;
    KeyCursor<C> cursor(params, context_.schedule);
    int tiles = 0;
    bool exists = cursor.next();
    PageNumbers<C, 1> numbers;
    if (exists) {
      numbers = {params.cache, cursor, 1};
    }
    while (exists) {
      if (cursor.tiles() != tiles) {
        tiles = cursor.tiles();
        feed_queries(cursor.work());
      }
      const BlockRows<C> rows(params.cache, numbers);
      exists = cursor.next();
      if (exists) {
        numbers = {params.cache, cursor, 1};
      }
      feed_keys(rows);
      feed_values(rows);
    }
    publish<0>();
  }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);

  __device__ __forceinline__ void feed_queries(const TileWork& work) {
#pragma unroll 1
    for (int column = 0; column < C.register_columns; column += kPanelColumns) {
      uint64_t& full = context_.barriers.k_full[k_at_.stage];
      wait_for(context_.barriers.k_empty[k_at_.stage], k_at_.parity);
      if (is_own_turn()) {
        load_query_panel(context_, work, column, context_.smem + kPlan.k + k_at_.stage * kPlan.k_bytes, full);
      } else {
        arrive_once(full);
      }
      k_at_.advance();
    }
  }

  __device__ __forceinline__ void feed_keys(const BlockRows<C>& rows) {
#pragma unroll 1
    for (int column = 0; column < C.head_dim; column += kPanelColumns) {
      uint64_t& full = context_.barriers.k_full[k_at_.stage];
      wait_for(context_.barriers.k_empty[k_at_.stage], k_at_.parity);
      if (is_own_turn()) {
        copy_keys(rows, column, context_.smem + kPlan.k + k_at_.stage * kPlan.k_bytes);
        issued(full);
      } else {
        arrive_once(full);
      }
      k_at_.advance();
    }
  }

  __device__ __forceinline__ void copy_keys(const BlockRows<C>& rows, int column, unsigned char* panel) const {
    const Params& params = context_.params;
    const int own = first_own_column(C, params);
    if (C.rule.query_values && column < own) {
      rows.copy(params.v, column, own, panel);
    } else {
      rows.copy(params.k, column - own, params.head_dim - own, panel);
    }
  }

  __device__ __forceinline__ void feed_values(const BlockRows<C>& rows) {
    constexpr int kPanelBytes = tile_bytes(C.block_n, kPanelColumns);
#pragma unroll 1
    for (int column = 0; column < C.head_dim_v; column += kPanelColumns) {
      const int in_stage = column % output_columns(C);
      uint64_t& full = context_.barriers.v_full[v_at_.stage];
      if (in_stage == 0) {
        wait_for(context_.barriers.v_empty[v_at_.stage], v_at_.parity);
      }
      if (is_own_turn()) {
        rows.copy(context_.params.v, column, context_.params.head_dim_v,
                  context_.smem + kPlan.v + v_at_.stage * kPlan.v_bytes + in_stage / kPanelColumns * kPanelBytes);
        issued(full);
      } else {
        arrive_once(full);
      }
      if (in_stage + kPanelColumns == output_columns(C)) {
        v_at_.advance();
      }
    }
  }

  /// Whether the next panel is this warp's.
  __device__ __forceinline__ bool is_own_turn() {
    const bool is_own = turn_ == 0;
    turn_ = is_own ? kRowWarps - 1 : turn_ - 1;
    return is_own;
  }

  /// Consumers may have to see what was issued before a stage becomes free: nothing is waited for until they do.
  __device__ __forceinline__ void wait_for(uint64_t& empty, uint32_t parity) {
    if (!has_completed(empty, parity)) {
      publish<0>();
      wait<C>(empty, parity);
    }
  }

  __device__ __forceinline__ void issued(uint64_t& full) {
    ptx::cp_async_commit_group();
    publish<1>();
    pending_ = &full;
  }

  /// The panel issued last but `behind`, if consumers have not got it yet.
  template <int behind>
  __device__ __forceinline__ void publish() {
    if (pending_ == nullptr) {
      return;
    }
    ptx::cp_async_wait_group<behind>();
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    __syncwarp();
    arrive_once(*pending_);
    pending_ = nullptr;
  }

  const Context<C>& context_;
  int turn_;  // panels before this warp's next
  RingPosition<C.key_panels> k_at_{0, 1};
  RingPosition<C.stages> v_at_{0, 1};
  uint64_t* pending_ = nullptr;  // what the panel issued last makes full, until consumers may read it
};

}  // namespace strobe::sm90::forward
