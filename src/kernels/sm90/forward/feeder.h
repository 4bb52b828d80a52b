// SPDX-License-Identifier: Apache-2.0
// Feeders bring Q, K and V to shared memory by TMA: one each, driven by one thread, or under a block mask by a warp, of
// which one thread feeds. Each walks over the tiles by itself, into a ring of its own, so none waits for another's
// consumers.
// See tile/tensor_map.h for the axes of the maps.
#pragma once

#include "kernels/sm90/forward/barriers.h"
#include "kernels/sm90/forward/bias_ring.h"
#include "kernels/sm90/forward/block_walk.h"
#include "kernels/sm90/forward/coordinates.h"
#include "kernels/sm90/forward/key_cursor.h"
#include "kernels/sm90/forward/page_blocks.h"
#include "kernels/sm90/forward/scale_feeder.h"
#include "kernels/sm90/forward/smem.h"
#include "kernels/sm90/forward/tile_work.h"
#include "kernels/sm90/ptx/cuda_ptx.h"

namespace strobe::sm90::forward {

/// Whether whole warps drive the feeders: to walk past hidden blocks, to bring scales, and to find pages.
template <Config C>
constexpr bool kWarpFeeds = C.rule.block_mask != 0 || eight_bit(C) || in_pages(C);

/// Columns of a row in one panel.
template <Config C>
constexpr int kColumns = kPanelRowBytes / operand_bytes(C);

/// Panels of a row of Q or K.
template <Config C>
constexpr int kRowPanels = panels_of_bytes(C.head_dim * operand_bytes(C));

template <Config C>
__device__ __forceinline__ bool this_thread_feeds() {
  return !kWarpFeeds<C> || threadIdx.x % kWarpSize == 0;
}

/// Each warpgroup's 64 rows of Q, as soon as that warpgroup has done its last Q K^T from the same stage.
template <Config C>
class QueryFeeder {
 public:
  __device__ __forceinline__ QueryFeeder(const TensorMap& map, const Params& params, const ScheduleOf<C>& schedule,
                                         unsigned char* smem, Barriers<C>& barriers)
      : map_(map),
        params_(params),
        scheduler_(params.tiles, params.sequences, schedule),
        smem_(smem + kPlan.q),
        barriers_(barriers) {
    for (auto& position : at_) {
      position.parity = 1;
    }
  }

  /// The next tile's rows, which stay for all of its segments. False when there is none.
  __device__ __forceinline__ bool feed() {
    TileWork work = before_;
    if (!next_work<C>(scheduler_, params_, work)) {
      return false;
    }
    if constexpr (folds(C)) {
      before_ = work;
      if (!work.begins_tile) {
        return true;
      }
    }
    BlockWalk<C> walk(params_, work);
    const SequenceStart rows = query_start<C>(params_, work, work.q.used);
#pragma unroll
    for (int w = 0; w < C.consumer_warpgroups; ++w) {
      const int first = folds(C) ? work.tile_begin : n_begin_of<C>(params_, work, w);
      if (walk.own_end(n_end_of<C>(params_, work, w), w) <= first) {
        continue;
      }
      const int stage = at_[w].stage;
      uint64_t& full = barriers_.q_full[w][stage];
      wait<C>(barriers_.q_empty[w][stage], at_[w].parity);
      if (this_thread_feeds<C>()) {
        expect(full, kPlan.q_bytes);
        unsigned char* destination = smem_ + (w * C.q_stages + stage) * kPlan.q_bytes;
        for (int panel = 0; panel < kRowPanels<C>; ++panel) {
          load_panel<(C.packed_heads > 1)>(map_,
                                           query_box<C>(rows, panel * kColumns<C>, work.row_of(w), work.tile.head),
                                           destination + panel * tile_bytes(kRowsPerWarpgroup, kPanelColumns), full);
        }
      }
      at_[w].advance();
    }
    return true;
  }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);

  const TensorMap& map_;
  const Params& params_;
  Scheduler<C> scheduler_;
  TileWork before_{};  // where segments are joined: what was fed last
  unsigned char* smem_;
  Barriers<C>& barriers_;
  RingPosition<C.q_stages> at_[C.consumer_warpgroups];
};

/// Blocks of K, or with `values` of V, right to left over each tile. With 8-bit V come the scales of both.
template <Config C, bool values>
class KeyFeeder {
 public:
  using StageBarriers = uint64_t (&)[C.stages];

  __device__ __forceinline__ KeyFeeder(const TensorMap& map, const Params& params, const ScheduleOf<C>& schedule,
                                       unsigned char* ring, unsigned char* scales, StageBarriers full,
                                       StageBarriers empty)
      : map_(map),
        params_(params),
        cursor_(params, schedule),
        ring_(ring),
        scales_(scales),
        full_(full),
        empty_(empty) {}

  /// The next block, of the next tile where this one's are done. False when there is none.
  __device__ __forceinline__ bool feed() {
    if (!cursor_.next()) {
      return false;
    }
    const SequenceStart rows =
        kTransposed ? SequenceStart{{0, 0}, cursor_.work().tile.sequence} : key_start<C>(params_, cursor_.work());
    const int head = cursor_.head();
    const int first = cursor_.block() * C.block_n;
    uint64_t& full = full_[at_.stage];
    if constexpr (kTransposed) {
      const ScaleFeeder<C> scales(params_, cursor_.work(), head, cursor_.block());
      wait<C>(empty_[at_.stage], at_.parity);
      scales.store(scales_ + at_.stage * scale_bytes(C));
    } else {
      wait<C>(empty_[at_.stage], at_.parity);
    }
    if (this_thread_feeds<C>()) {
      unsigned char* destination = ring_ + at_.stage * kStageBytes;
      if (C.entries && rows.batch == kNoEntry) {
        store_zeros(destination, kStageBytes);
        arrive_once(full);
      } else {
        expect(full, kStageBytes);
        for (int panel = 0; panel < kPanels; ++panel) {
          const int along = panel * kColumns<C>;
          const BoxStart box = box_of(rows, along, first, head);
          load_panel<false>(map_, box, destination + panel * (kStageBytes / kPanels), full);
        }
      }
    } else if constexpr (kTransposed && C.debug) {
      arrive<C>(full);  // this lane has written scales
    }
    at_.advance();
    return true;
  }

 private:
  static constexpr bool kTransposed = values && eight_bit(C);

  /// Of a panel `along` a row of the stage.
  __device__ __forceinline__ BoxStart box_of(const SequenceStart& rows, int along, int first, int head) const {
    if constexpr (!kTransposed) {
      return rows.box(along, first, head);
    } else if (is_packed_value<C>(params_)) {
      return packed_value_box<C>(params_, cursor_.work(), first + along, head);
    } else {
      // V that lies transposed has keys as columns, which no bound ends: zeros and what is hidden meet there.
      return rows.box(first + along, 0, head);
    }
  }

  static constexpr int kPanels = kTransposed ? panels_of_bytes(C.block_n)
                                 : values    ? panels(C.head_dim_v)
                                             : kRowPanels<C>;
  static constexpr int kStageBytes = values ? smem_plan(C).v_bytes : smem_plan(C).k_bytes;

  const TensorMap& map_;
  const Params& params_;
  KeyCursor<C> cursor_;
  unsigned char* ring_;
  unsigned char* scales_;  // of 8-bit operands, stage by stage
  StageBarriers full_;
  StageBarriers empty_;
  RingPosition<C.stages> at_{0, 1};
};

/// The pages of one block after another; `Block` is PageBoxes or PageRows.
template <Config C, typename Block>
class PageCursor {
 public:
  __device__ __forceinline__ PageCursor(const Params& params, const ScheduleOf<C>& schedule)
      : params_(params), cursor_(params, schedule) {}

  /// False when there is no other block.
  __device__ __forceinline__ bool next(Block& block) {
    if (!cursor_.next()) {
      return false;
    }
    block = Block(params_, cursor_);
    return true;
  }

 private:
  const Params& params_;
  KeyCursor<C> cursor_;
};

/// Few queries wait for their keys: the page table is read one block ahead of the block that is wanted.
template <Config C, typename Block>
  requires(C.consumer_warpgroups == 1)
class PageCursor<C, Block> {
 public:
  __device__ __forceinline__ PageCursor(const Params& params, const ScheduleOf<C>& schedule)
      : params_(params), cursor_(params, schedule) {
    look_ahead();
  }

  __device__ __forceinline__ bool next(Block& block) {
    if (!has_next_) {
      return false;
    }
    block = next_;
    look_ahead();
    return true;
  }

 private:
  __device__ __forceinline__ void look_ahead() {
    has_next_ = cursor_.next();
    if (has_next_) {
      next_ = Block(params_, cursor_);
    }
  }

  const Params& params_;
  KeyCursor<C> cursor_;
  Block next_;
  bool has_next_;
};

/// Blocks of K or V out of pages, by TMA.
template <Config C, bool values>
  requires(C.keys == KeySource::page_boxes)
class KeyFeeder<C, values> {
 public:
  using StageBarriers = uint64_t (&)[C.stages];

  __device__ __forceinline__ KeyFeeder(const TensorMap& map, const Params& params, const ScheduleOf<C>& schedule,
                                       unsigned char* ring, unsigned char*, StageBarriers full, StageBarriers empty)
      : map_(map), params_(params), pages_(params, schedule), ring_(ring), full_(full), empty_(empty) {}

  __device__ __forceinline__ bool feed() {
    PageBoxes<C> boxes;
    if (!pages_.next(boxes)) {
      return false;
    }
    boxes.find(params_.cache);
    wait<C>(empty_[at_.stage], at_.parity);
    boxes.load(params_.cache, map_, kPanels, kColumns<C>, ring_ + at_.stage * kStageBytes, full_[at_.stage]);
    at_.advance();
    return true;
  }

 private:
  static constexpr int kPanels = values ? panels(C.head_dim_v) : kRowPanels<C>;
  static constexpr int kStageBytes = values ? smem_plan(C).v_bytes : smem_plan(C).k_bytes;
  static_assert(!eight_bit(C));

  const TensorMap& map_;
  const Params& params_;
  PageCursor<C, PageBoxes<C>> pages_;
  unsigned char* ring_;
  StageBarriers full_;
  StageBarriers empty_;
  RingPosition<C.stages> at_{0, 1};
};

/// Blocks of K or V out of pages, by cp.async. WGMMAs read what threads copied once those have seen it arrive and
/// fenced: that is done for a block after the next one was issued, or before the warp has to wait for a stage.
template <Config C, bool values>
  requires(C.keys == KeySource::page_rows)
class KeyFeeder<C, values> {
 public:
  using StageBarriers = uint64_t (&)[C.stages];

  __device__ __forceinline__ KeyFeeder(const TensorMap&, const Params& params, const ScheduleOf<C>& schedule,
                                       unsigned char* ring, unsigned char*, StageBarriers full, StageBarriers empty)
      : params_(params), pages_(params, schedule), ring_(ring), full_(full), empty_(empty) {}

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

/// All of them, made from what the kernel was given.
template <Config C>
struct Feeders {
  const TensorMap& q;
  const TensorMap& k;
  const TensorMap& v;
  const TensorMap& o;
  const BiasMap<C>& bias;
  const Params& params;
  const ScheduleOf<C>& schedule;
  unsigned char* smem;
  Barriers<C>& barriers;

  __device__ __forceinline__ QueryFeeder<C> queries() const { return {q, params, schedule, smem, barriers}; }
  __device__ __forceinline__ KeyFeeder<C, false> keys() const {
    return {k, params, schedule, smem + smem_plan(C).k, nullptr, barriers.k_full, barriers.k_empty};
  }
  __device__ __forceinline__ KeyFeeder<C, true> values() const {
    return {v, params, schedule, smem + smem_plan(C).v, smem + smem_plan(C).scales, barriers.v_full, barriers.v_empty};
  }
  __device__ __forceinline__ BiasFeeder<C> biases() const { return {bias, params, schedule, smem, barriers}; }
};

}  // namespace strobe::sm90::forward
