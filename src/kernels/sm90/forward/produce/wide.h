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
  TensorBlock() = default;
  __device__ __forceinline__ TensorBlock(const Params& params, const KeyCursor<C>& cursor)
      : rows_(key_start<C>(params, cursor.work())), first_(cursor.block() * C.block_n), head_(cursor.head()) {}

  __device__ __forceinline__ void find(const CacheParams&) const {}

  __device__ __forceinline__ void load(const CacheParams&, const TensorMap& map, const PanelRange& panels,
                                       unsigned char* stage, uint64_t& full) const {
    if (this_thread_feeds<C>()) {
      load_panels(map, !C.entries || rows_.batch != kNoEntry, panels.count, C.block_n * kPanelRowBytes, stage, full,
                  [&](int panel) { return rows_.box(panels.column(panel), first_, head_); });
    }
  }

 private:
  SequenceStart rows_;
  int first_, head_;
};

template <Config C>
struct WideBlockOf {
  using Type = TensorBlock<C>;
};
template <Config C>
  requires(in_page_boxes(C))
struct WideBlockOf<C> {
  using Type = PagedBlock<C>;
};

/// One block after another, of which the next one's pages are read while this one's rows are loaded.
template <Config C>
class WideBlocks {
 public:
  using Block = typename WideBlockOf<C>::Type;

  __device__ __forceinline__ explicit WideBlocks(const Context<C>& context)
      : params_(context.params), cursor_(context.params, context.schedule) {
    look_ahead();
  }

  /// Whether there is another block; cursor() is at it until look_ahead().
  __device__ __forceinline__ bool has_next() const { return has_next_; }
  __device__ __forceinline__ const KeyCursor<C>& cursor() const { return cursor_; }
  __device__ __forceinline__ const Block& next() const { return next_; }

  /// On to the block after that, whose pages are read.
  __device__ __forceinline__ void look_ahead() {
    has_next_ = cursor_.next();
    if (has_next_) {
      next_ = Block(params_, cursor_);
    }
  }

  /// What was read says where next() lies.
  __device__ __forceinline__ void find_next() {
    if (has_next_) {
      next_.find(params_.cache);
    }
  }

  __device__ __forceinline__ Block take() {
    Block block = next_;
    look_ahead();
    block.find(params_.cache);
    return block;
  }

 private:
  const Params& params_;
  KeyCursor<C> cursor_;
  Block next_;
  bool has_next_;
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
  WideBlocks<C> blocks(context);
  while (blocks.has_next()) {
    if (blocks.cursor().begins_tile()) {
      for (int column = 0; column < C.register_columns; column += kPanelColumns) {
        ring.feed([&](unsigned char* destination, uint64_t& full) {
          if (this_thread_feeds<C>()) {
            load_query_panel(context, blocks.cursor().work(), column, destination, full);
          } else if constexpr (panel_writers(C) > 1) {
            cuda::ptx::mbarrier_arrive(&full);
          }
        });
      }
    }
    const auto block = blocks.take();
    const auto feed_columns = [&](const TensorMap& map, int columns) {
      for (int column = 0; column < columns; column += kPanelColumns) {
        ring.feed([&](unsigned char* destination, uint64_t& full) {
          block.load(context.params.cache, map, {.first = column, .count = 1}, destination, full);
        });
      }
    };
    const int own = first_own_column(C, context.params);
    if constexpr (C.rule.query_values) {
      feed_columns(context.v, own);
    }
    feed_columns(context.k, C.head_dim - own);
  }
}

/// V, block by block, of each the columns of one output warpgroup after another.
template <Config C>
__device__ __forceinline__ void feed_wide_values(const Context<C>& context) {
  PieceFeeder<C, C.stages, smem_plan(C).v_bytes> ring(context.smem + smem_plan(C).v, context.barriers.v_full,
                                                      context.barriers.v_empty);
  WideBlocks<C> blocks(context);
  const int last = last_panel(context.params.head_dim_v);
  while (blocks.has_next()) {
    const auto block = blocks.take();
    for (int first = 0; first < C.head_dim_v; first += output_columns(C)) {
      ring.feed([&](unsigned char* destination, uint64_t& full) {
        const PanelRange range{.first = first, .count = panels(output_columns(C)), .last = last};
        block.load(context.params.cache, context.v, range, destination, full);
      });
    }
  }
}

/// Where V is K's first columns: of each block the columns behind those to the ring of K, then the others to that of V.
/// Q's first columns pass through the latter, before the first block of their tile. That ring is little more than a
/// block deep: on which page the next block lies is found out between two pieces, not between two blocks.
template <Config C>
__device__ __forceinline__ void feed_shared_keys(const Context<C>& context) {
  PieceFeeder<C, C.key_panels, smem_plan(C).k_bytes> behind(context.smem + smem_plan(C).k, context.barriers.k_full,
                                                            context.barriers.k_empty);
  PieceFeeder<C, C.stages, smem_plan(C).v_bytes> shared(context.smem + smem_plan(C).v, context.barriers.v_full,
                                                        context.barriers.v_empty);
  constexpr bool kLooksAhead = in_pages(C);  // others have little to find
  WideBlocks<C> blocks(context);
  if (kLooksAhead) {
    blocks.find_next();
  }
  while (blocks.has_next()) {
    if (blocks.cursor().begins_tile()) {
      for (int first = 0; first < C.register_columns; first += kSharedColumns) {
        shared.feed([&](unsigned char* destination, uint64_t& full) {
          if (this_thread_feeds<C>()) {
            load_query_piece(context, blocks.cursor().work(), first, destination, full);
          }
        });
      }
    }
    const auto block = kLooksAhead ? blocks.next() : blocks.take();
    if constexpr (C.head_dim > C.head_dim_v) {
      behind.feed([&](unsigned char* destination, uint64_t& full) {
        const PanelRange range{.first = C.head_dim_v - first_own_column(C, context.params),
                               .count = panels(C.head_dim - C.head_dim_v)};
        block.load(context.params.cache, context.k, range, destination, full);
      });
    }
    const TensorMap& map = C.rule.query_values ? context.v : context.k;
    for (int first = 0; first < C.head_dim_v; first += kSharedColumns) {
      shared.feed([&](unsigned char* destination, uint64_t& full) {
        block.load(context.params.cache, map, {.first = first, .count = panels(kSharedColumns)}, destination, full);
      });
      if (kLooksAhead && first == 0) {
        blocks.look_ahead();
      }
    }
    if (kLooksAhead) {
      blocks.find_next();
    }
  }
}

}  // namespace strobe::sm90::forward
