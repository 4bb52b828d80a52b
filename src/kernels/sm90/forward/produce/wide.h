// SPDX-License-Identifier: Apache-2.0
// Wide loops: K to shared memory 64 columns of a block at a time, V one output warpgroup's columns at a time. What of Q
// is to be kept in registers passes through the ring of K, before the first block of its tile.
#pragma once

#include "kernels/sm90/forward/context.h"
#include "kernels/sm90/forward/produce/key_cursor.h"
#include "kernels/sm90/forward/produce/page_boxes.h"
#include "kernels/sm90/forward/produce/query.h"
#include "kernels/sm90/forward/produce/stage.h"
#include "kernels/sm90/forward/tile/rows.h"

namespace strobe::sm90::forward {

/// Panels of a block of keys that lies in a tensor, or in an entry of a cache.
template <Config C>
class TensorBlock {
 public:
  __device__ __forceinline__ TensorBlock(const Params& params, const KeyCursor<C>& cursor)
      : rows_(key_start<C>(params, cursor.work())), first_(cursor.block() * C.block_n), head_(cursor.head()) {}

  __device__ __forceinline__ void load(const CacheParams&, const TensorMap& map, int first, int panels, int columns,
                                       unsigned char* stage, uint64_t& full) const {
    constexpr int kPanelBytes = C.block_n * kPanelRowBytes;
    if (!this_thread_feeds<C>()) {
      return;
    }
    if (C.entries && rows_.batch == kNoEntry) {
      store_zeros(stage, panels * kPanelBytes);
      arrive_once(full);
      return;
    }
    expect(full, panels * kPanelBytes);
    for (int panel = 0; panel < panels; ++panel) {
      load_panel<false>(map, rows_.box(first + panel * columns, first_, head_), stage + panel * kPanelBytes, full);
    }
  }

 private:
  const SequenceStart rows_;
  const int first_, head_;
};

/// And of one that lies in pages of whole boxes.
template <Config C>
class PagedBlock : public PageBoxes<C> {
 public:
  __device__ __forceinline__ PagedBlock(const Params& params, const KeyCursor<C>& cursor)
      : PageBoxes<C>(params, cursor) {
    this->find(params.cache);
  }
};

template <Config C>
struct WideBlockOf {
  using Type = TensorBlock<C>;
};
template <Config C>
  requires(C.keys == KeySource::page_boxes)
struct WideBlockOf<C> {
  using Type = PagedBlock<C>;
};

/// A ring of pieces of K or V, filled by one thread, or where kWarpFeeds by a warp.
template <Config C, int stages, int stage_bytes>
class PieceFeeder {
 public:
  using StageBarriers = uint64_t (&)[stages];

  __device__ __forceinline__ PieceFeeder(unsigned char* ring, StageBarriers full, StageBarriers empty)
      : ring_(ring), full_(full), empty_(empty) {}

  /// The next piece, once its stage is free: load(destination, full) loads all of it.
  template <typename Load>
  __device__ __forceinline__ void feed(const Load& load) {
    wait<C>(empty_[at_.stage], at_.parity);
    load(ring_ + at_.stage * stage_bytes, full_[at_.stage]);
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
  PieceFeeder<C, C.key_panels, smem_plan(C).k_bytes> ring(context.smem + smem_plan(C).k, context.barriers.k_full,
                                                          context.barriers.k_empty);
  KeyCursor<C> cursor(context.params, context.schedule);
  int tiles = 0;
  while (cursor.next()) {
    const typename WideBlockOf<C>::Type block(context.params, cursor);
    if (cursor.tiles() != tiles) {
      tiles = cursor.tiles();
      for (int column = 0; column < C.register_columns; column += kPanelColumns) {
        ring.feed([&](unsigned char* destination, uint64_t& full) {
          load_query_panel(context, cursor.work(), column, destination, full);
        });
      }
    }
    for (int column = 0; column < C.head_dim; column += kPanelColumns) {
      ring.feed([&](unsigned char* destination, uint64_t& full) {
        block.load(context.params.cache, context.k, column, 1, kPanelColumns, destination, full);
      });
    }
  }
}

/// V, block by block, of each the columns of one output warpgroup after another.
template <Config C>
__device__ __forceinline__ void feed_wide_values(const Context<C>& context) {
  PieceFeeder<C, C.stages, smem_plan(C).v_bytes> ring(context.smem + smem_plan(C).v, context.barriers.v_full,
                                                      context.barriers.v_empty);
  KeyCursor<C> cursor(context.params, context.schedule);
  while (cursor.next()) {
    const typename WideBlockOf<C>::Type block(context.params, cursor);
    for (int first = 0; first < C.head_dim_v; first += output_columns(C)) {
      ring.feed([&](unsigned char* destination, uint64_t& full) {
        block.load(context.params.cache, context.v, first, panels(output_columns(C)), kPanelColumns, destination, full);
      });
    }
  }
}

}  // namespace strobe::sm90::forward
