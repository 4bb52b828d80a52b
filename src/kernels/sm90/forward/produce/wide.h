// SPDX-License-Identifier: Apache-2.0
// Wide loops: K to shared memory 64 columns of a block at a time, V one output warpgroup's columns at a time. What of Q
// is to be kept in registers passes through the ring of K, before the first block of its tile.
#pragma once

#include "kernels/sm90/forward/context.h"
#include "kernels/sm90/forward/produce/key_cursor.h"
#include "kernels/sm90/forward/produce/stage.h"
#include "kernels/sm90/forward/tile/rows.h"

namespace strobe::sm90::forward {

/// A ring of pieces of K or V, filled by one thread, or under a block mask by a warp.
template <Config C, int stages, int stage_bytes>
class PieceFeeder {
 public:
  using StageBarriers = uint64_t (&)[stages];

  __device__ __forceinline__ PieceFeeder(unsigned char* ring, StageBarriers full, StageBarriers empty)
      : ring_(ring), full_(full), empty_(empty) {}

  /// The next piece, once its stage is free: load(destination, full) loads all of it.
  template <typename Load>
  __device__ __forceinline__ void feed(const Load& load) {
    uint64_t& full = full_[at_.stage];
    wait<C>(empty_[at_.stage], at_.parity);
    if (this_thread_feeds<C>()) {
      expect(full, stage_bytes);
      load(ring_ + at_.stage * stage_bytes, full);
    }
    at_.advance();
  }

 private:
  unsigned char* ring_;
  StageBarriers full_;
  StageBarriers empty_;
  RingPosition<stages> at_{0, 1};
};

/// K, block by block from right to left over each tile, and Q's first columns before.
template <Config C>
__device__ __forceinline__ void feed_wide_keys(const Context<C>& context) {
  static_assert(smem_plan(C).k_bytes == tile_bytes(kRowsPerWarpgroup, kPanelColumns));
  PieceFeeder<C, C.key_panels, smem_plan(C).k_bytes> ring(context.smem + smem_plan(C).k, context.barriers.k_full,
                                                          context.barriers.k_empty);
  KeyCursor<C> cursor(context.params, context.schedule);
  int tiles = 0;
  while (cursor.next()) {
    const TileWork& work = cursor.work();
    if (cursor.tiles() != tiles) {
      tiles = cursor.tiles();
      const SequenceStart rows = query_start<C>(context.params, work, work.q.used);
      for (int column = 0; column < C.register_columns; column += kPanelColumns) {
        ring.feed([&](unsigned char* destination, uint64_t& full) {
          load_panel<(C.packed_heads > 1)>(context.q, query_box<C>(rows, column, work.m_begin, work.tile.head),
                                           destination, full);
        });
      }
    }
    const SequenceStart rows = key_start<C>(context.params, work);
    for (int column = 0; column < C.head_dim; column += kPanelColumns) {
      ring.feed([&](unsigned char* destination, uint64_t& full) {
        load_panel<false>(context.k, rows.box(column, cursor.block() * C.block_n, cursor.head()), destination, full);
      });
    }
  }
}

/// V, block by block, of each the columns of one output warpgroup after another.
template <Config C>
__device__ __forceinline__ void feed_wide_values(const Context<C>& context) {
  constexpr int kPanelBytes = tile_bytes(C.block_n, kPanelColumns);
  PieceFeeder<C, C.stages, smem_plan(C).v_bytes> ring(context.smem + smem_plan(C).v, context.barriers.v_full,
                                                      context.barriers.v_empty);
  KeyCursor<C> cursor(context.params, context.schedule);
  while (cursor.next()) {
    const SequenceStart rows = key_start<C>(context.params, cursor.work());
    for (int first = 0; first < C.head_dim_v; first += output_columns(C)) {
      ring.feed([&](unsigned char* destination, uint64_t& full) {
        for (int column = 0; column < output_columns(C); column += kPanelColumns) {
          load_panel<false>(context.v, rows.box(first + column, cursor.block() * C.block_n, cursor.head()),
                            destination + column / kPanelColumns * kPanelBytes, full);
        }
      });
    }
  }
}

}  // namespace strobe::sm90::forward
