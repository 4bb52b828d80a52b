// SPDX-License-Identifier: Apache-2.0
// From global to shared memory: a warp's rows of Q, and blocks of keys and values some steps ahead of their use.
#pragma once

#include "kernels/sm80/forward/block_places.h"
#include "kernels/sm80/forward/block_walk.h"
#include "kernels/sm80/forward/joined_queries.h"
#include "kernels/sm80/forward/key_value_rows.h"
#include "kernels/sm80/forward/smem.h"
#include "kernels/sm80/forward/stored_block.h"
#include "kernels/sm80/ptx/mbarrier.h"
#include "kernels/sm80/tile/copy.h"

namespace strobe::sm80::forward {

/// What turns blocks of 8-bit keys and values into the tiles that products read, and knows their scales.
template <Config C>
class BlockConverter {
 public:
  __device__ __forceinline__ BlockConverter(const Params& params, const TileWork& work)
      : keys_(params.k_scales.of(work.tile.sequence, head_kv_of(params, work)), params.k_scales.shift),
        values_(params.v_scales.of(work.tile.sequence, head_kv_of(params, work)), params.v_scales.shift) {}

  /// Fetches the scales of the block that is converted next, from its first key on, of `used`.
  __device__ __forceinline__ void fetch_scales(int first, int used) {
    keys_.fetch_scales(first, used);
    values_.fetch_scales(first, used);
  }
  __device__ __forceinline__ void convert(const unsigned char* k, const unsigned char* v, unsigned char* wide_k,
                                          unsigned char* wide_v) const {
    keys_.convert(k, wide_k);
    values_.convert(v, wide_v);
  }

 private:
  StoredBlocks<C, CopiedKTile<C>, KTile<C>> keys_;
  StoredBlocks<C, CopiedVTile<C>, VTile<C>> values_;
};

/// K and V of 16 bits.
template <Config C>
  requires(!converts(C))
class BlockConverter<C> {
 public:
  __device__ __forceinline__ BlockConverter(const Params&, const TileWork&) {}
};

/// Keys and values of one tile, block by block in the order of the walk of a group of warps. The group's threads meet
/// in before_scores(): from then on none of them reads the stage of the step before. With a single stage, K of the next
/// block arrives under the softmax and P V, V of this block under Q K^T, and the threads meet again in after_scores().
/// Blocks of 8-bit elements are converted in before_scores(), all of their stages being on their way meanwhile.
template <Config C>
class KeyValueLoader {
 public:
  __device__ __forceinline__ KeyValueLoader(const Params& params, const TileWork& work)
      : params_(params), source_(params, work), walk_(params, work), next_(params, work), converter_(params, work) {}

  __device__ __forceinline__ BlockWalk<C>& walk() { return walk_; }

  /// Which of the groups this thread's is, all lanes of a warp knowing that they agree.
  __device__ __forceinline__ static int group() { return C.key_groups == 1 ? 0 : warp_of_cta() / row_warps(C); }

  /// Begins with the first block; what else the thread has on its way (Q) belongs to it.
  __device__ __forceinline__ void start(int n) {
    if constexpr (kAlternates) {
      start_keys(0, n);
      ptx::cp_async_commit_group();
    } else {
      find(n);
      fetch_scales(n);
#pragma unroll
      for (int stage = 0; stage < stages_ahead(C); ++stage) {
        start_both(stage, n);
        n = walk_.before(n);
      }
    }
  }

  /// Waits for K of block n, and with several stages for V.
  __device__ __forceinline__ void before_scores(int n) {
    ptx::cp_async_wait_group<kAlternates ? 0 : stages_ahead(C) - 1>();
    meet();
    if constexpr (converts(C)) {
      convert(n);
      start_ahead(n);
    } else if constexpr (kAlternates) {
      start_values(0, n);
      ptx::cp_async_commit_group();
    } else if constexpr (C.copies_first) {
      start_ahead(n);
    }
  }

  /// Waits for V of block n, and starts what comes next, under the products that were just issued.
  __device__ __forceinline__ void after_scores(int n) {
    if constexpr (kAlternates) {
      ptx::cp_async_wait_group<0>();
      meet();
      n = walk_.before(n);
      if (walk_.has(n)) {
        start_keys(0, n);
      }
      ptx::cp_async_commit_group();
    } else if constexpr (!C.copies_first && !converts(C)) {
      start_ahead(n);
    }
  }

  __device__ __forceinline__ void end_step() {
    if constexpr (!kAlternates) {
      stage_ = stage_ + 1 == C.stages ? 0 : stage_ + 1;
    }
  }

  __device__ __forceinline__ uint32_t keys() const {
    return converts(C) ? tiles() + kPlan.wide_k + group() * kPlan.wide_k_bytes : keys(stage_);
  }
  __device__ __forceinline__ uint32_t values() const {
    return converts(C) ? tiles() + kPlan.wide_v + group() * kPlan.wide_v_bytes : values(stage_);
  }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);
  static constexpr bool kAlternates = C.stages == 1 && !converts(C);

  static constexpr int kThreads = threads_per_group(C);

  /// Of rows that end within a line the rest is another head's, which another CTA reads, at another time.
  template <typename Tile>
  static constexpr bool kWholeLines = Tile::kPanels * Tile::kRowBytes % 128 == 0;

  /// Copies count 16 bits.
  __device__ __forceinline__ static int copied(int head_dim) {
    return is_stored(C) ? head_dim / 2 : halves(C, head_dim);
  }

  __device__ __forceinline__ static uint32_t tiles() { return shared_address(shared_memory()); }
  __device__ __forceinline__ static uint32_t keys(int stage) {
    return tiles() + kPlan.k + (group() * C.stages + stage) * kPlan.k_bytes;
  }
  __device__ __forceinline__ static uint32_t values(int stage) {
    return tiles() + kPlan.v + (group() * C.stages + stage) * kPlan.v_bytes;
  }

  /// The threads of the group.
  __device__ __forceinline__ static void meet() {
    if constexpr (C.key_groups == 1) {
      __syncthreads();
    } else if constexpr (row_warps(C) == 1) {
      meet_lanes<C>();
    } else {
      ptx::barrier_cta_sync(1 + group(), kThreads);
    }
  }

  __device__ __forceinline__ void start_keys(int stage, int n) const {
    const int columns = copied(params_.head_dim);
    if constexpr (C.pages_ahead) {
      start_pieces<CopiedKTile<C>>(keys(stage), params_.k.row_stride, source_.used() - n * C.block_n, columns,
                                   [&](int piece) { return next_.key(piece); });
    } else {
      source_.template start<CopiedKTile<C>, kThreads, kWholeLines<CopiedKTile<C>>>(keys(stage), params_.k,
                                                                                    source_.keys(), n, 0, columns);
    }
  }
  __device__ __forceinline__ void start_values(int stage, int n) const {
    const int columns = copied(params_.head_dim_v);
    if constexpr (C.pages_ahead) {
      start_pieces<CopiedVTile<C>>(values(stage), params_.v.row_stride, source_.used() - n * C.block_n, columns,
                                   [&](int piece) { return next_.value(piece); });
    } else {
      source_.template start<CopiedVTile<C>, kThreads, kWholeLines<CopiedVTile<C>>>(values(stage), params_.v,
                                                                                    source_.values(), n, 0, columns);
    }
  }

  /// A block whose pieces were found: piece_of(i) is where one begins. `left`: rows of the block that exist, in pages
  /// that do.
  template <typename Tile, typename PieceOf>
  __device__ __forceinline__ void start_pieces(uint32_t tile, long long row_stride, int left, int columns,
                                               const PieceOf& piece_of) const {
    const auto exists = [&](int piece) { return next_.exists(piece); };
    if constexpr (C.page_rows == 1) {
      start_found_copy<Tile, C.block_n, kWholeLines<Tile>>(tile, columns, piece_of, exists);
    } else {
#pragma unroll
      for (int piece = 0; piece < C.block_n / C.page_rows; ++piece) {
        const int row = piece * C.page_rows;
        start_copy<Tile, C.page_rows, kThreads, kWholeLines<Tile>>(tile + row * Tile::kRowBytes, piece_of(piece),
                                                                   row_stride, exists(piece) ? left - row : 0, columns);
      }
    }
  }

  /// Looks up the rows of block n, which is copied next.
  __device__ __forceinline__ void find(int n) {
    if constexpr (C.pages_ahead) {
      if (walk_.has(n)) {
        next_.find(params_, n * C.block_n, source_.used());
      }
    }
  }

  __device__ __forceinline__ void start_both(int stage, int n) {
    if (walk_.has(n)) {
      start_keys(stage, n);
      start_values(stage, n);
      find(walk_.before(n));
    }
    ptx::cp_async_commit_group();  // an empty one counts, too
  }

  /// What follows block n, into the stage of the block before it, or if that is converted of its own.
  __device__ __forceinline__ void start_ahead(int n) {
#pragma unroll
    for (int ahead = 0; ahead < stages_ahead(C); ++ahead) {
      n = walk_.before(n);
    }
    start_both(converts(C) ? stage_ : stage_ == 0 ? C.stages - 1 : stage_ - 1, n);
  }

  /// Scales of block n, which is converted next.
  __device__ __forceinline__ void fetch_scales(int n) {
    if constexpr (converts(C)) {
      converter_.fetch_scales(n * C.block_n, source_.used());
    }
  }

  /// Block n from its stage to the tiles that products read.
  __device__ __forceinline__ void convert(int n) {
    unsigned char* const memory = shared_memory();
    const int stage = group() * C.stages + stage_;
    converter_.convert(memory + kPlan.k + stage * kPlan.k_bytes, memory + kPlan.v + stage * kPlan.v_bytes,
                       memory + kPlan.wide_k + group() * kPlan.wide_k_bytes,
                       memory + kPlan.wide_v + group() * kPlan.wide_v_bytes);
    fetch_scales(walk_.before(n));
    meet();
  }

  const Params& params_;
  KeyValueSource<C> source_;
  BlockWalk<C> walk_;
  BlockPlaces<C> next_;  // of the block that is copied next
  BlockConverter<C> converter_;
  int stage_ = 0;  // of the block in use
};

/// A warp's rows of Q as A operands. Warps that share them wait for each other before they read them.
template <Config C>
class Queries {
 public:
  static constexpr int kSteps = halves(C, C.head_dim) / kStep;  // of 32 bytes
  static constexpr int kThreads = C.column_warps * kWarpSize;   // that copy: warps that share rows do so together

  /// Starts the copy; `tile`: of this warp.
  __device__ __forceinline__ Queries(const Params& params, const TileWork& work, uint32_t tile, int first_row)
      : tile_(tile) {
    if constexpr (C.key_groups > 1) {  // the first group copies for all
      if (KeyValueLoader<C>::group() != 0) {
        return;
      }
    }
    if constexpr (C.rule.query_values) {
      start_joined_queries<C, kThreads>(params, work, tile, first_row);
    } else if constexpr (C.packed_heads == 1) {
      start_copy<QTile<C>, C.rows_per_warp, kThreads>(tile, query_row<C>(params.q, params, work, first_row),
                                                      params.q.row_stride, work.q.used - first_row,
                                                      halves(C, params.head_dim));
    } else {
      const int columns = halves(C, params.head_dim);
      start_scattered_copy<QTile<C>, C.rows_per_warp, kThreads>(tile, params.q.data, columns, [&](int row) {
        return first_row + row < used_rows<C>(work) ? query_row<C>(params.q, params, work, first_row + row) : nullptr;
      });
    }
  }

  /// When the copy is done and seen by all warps that read it.
  __device__ __forceinline__ void arrived() {
    if constexpr (C.q_in_registers) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        load(registers_[step], step);
      }
    }
  }

  __device__ __forceinline__ void operator()(uint32_t (&q)[fragments(C)][4], int step) const {
    if constexpr (C.q_in_registers) {
#pragma unroll
      for (int i = 0; i < 4 * fragments(C); ++i) {
        q[i / 4][i % 4] = registers_[step][i / 4][i % 4];
      }
    } else {
      load(q, step);
    }
  }

 private:
  __device__ __forceinline__ void load(uint32_t (&q)[fragments(C)][4], int step) const {
#pragma unroll
    for (int f = 0; f < fragments(C); ++f) {
      const uint32_t first = a_operand<QTile<C>>(tile_, 0);
      ptx::ldmatrix_x4(q[f], QTile<C>::pair_after(first, step) + f * kFragmentRows * QTile<C>::kRowBytes);
    }
  }

  uint32_t tile_;
  uint32_t registers_[C.q_in_registers ? kSteps : 1][fragments(C)][4];
};

}  // namespace strobe::sm80::forward
