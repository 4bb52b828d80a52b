// SPDX-License-Identifier: Apache-2.0
// K and V stored in 8 bits: one warp loads Q, and blocks of K and V as they are stored into a ring of their own; the
// other producer warps convert those into the rings that consumers read, which know nothing of it.
//
// Blocks pass the ring in the order in which consumers need them: the first K, and then each K before the V of the
// block before it. So the warps that convert never wait for a stage that consumers free only after a later block.
#pragma once

#include "kernels/math/stored.h"
#include "kernels/sm90/forward/context.h"
#include "kernels/sm90/forward/produce/key_cursor.h"
#include "kernels/sm90/forward/produce/page_boxes.h"
#include "kernels/sm90/forward/produce/query.h"
#include "kernels/sm90/forward/produce/stage.h"

namespace strobe::sm90::forward {

/// Calls key() for every block, until it returns false, and value() for every block after the key() of the next.
template <typename Key, typename Value>
__device__ __forceinline__ void for_each_stored(const Key& key, const Value& value) {
  bool more = key();
  while (more) {
    more = key();
    value();
  }
}

/// Driven by one thread, or under a block mask by a warp.
template <Config C>
class StoredLoader {
 public:
  __device__ __forceinline__ explicit StoredLoader(const Context<C>& context)
      : context_(context),
        queries_(context),
        keys_(context.params, context.schedule),
        values_(context.params, context.schedule) {}

  __device__ __forceinline__ void run() {
    for_each_stored(
        [&] {
          const bool more = keys_.next();
          if (more) {
            load(context_.k, keys_, panels_of_bytes(C.head_dim));
            feed_queries(is_first_);
            is_first_ = false;
          }
          return more;
        },
        [&] {
          values_.next();
          load(context_.v, values_, panels_of_bytes(C.head_dim_v));
          feed_queries(true);
        });
  }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);

  /// Q of every tile whose first K is on its way: after the last V of the tile before, which that tile's consumers need
  /// before they give back their Q.
  __device__ __forceinline__ void feed_queries(bool now) {
    for (; now && fed_ < keys_.tiles(); ++fed_) {
      queries_.feed();
    }
  }

  __device__ __forceinline__ void load(const TensorMap& map, const KeyCursor<C>& cursor, int panels) {
    uint64_t& full = context_.barriers.raw_full[at_.stage];
    if constexpr (C.keys == KeySource::page_boxes) {
      PageBoxes<C> boxes(context_.params, cursor);
      boxes.find(context_.params.cache);
      wait<C>(context_.barriers.raw_empty[at_.stage], at_.parity);
      boxes.load(context_.params.cache, map, {.count = panels, .columns = kPanelRowBytes},
                 context_.smem + kPlan.raw + at_.stage * kPlan.raw_bytes, full);
      at_.advance();
      return;
    }
    wait<C>(context_.barriers.raw_empty[at_.stage], at_.parity);
    if (this_thread_feeds<C>()) {
      const SequenceStart rows = key_start<C>(context_.params, cursor.work());
      load_panels(map, !C.entries || rows.batch != kNoEntry, panels, C.block_n * kPanelRowBytes,
                  context_.smem + kPlan.raw + at_.stage * kPlan.raw_bytes, full, [&](int panel) {
                    return rows.box(panel * kPanelRowBytes, cursor.block() * C.block_n, cursor.head());
                  });
    }
    at_.advance();
  }

  const Context<C>& context_;
  QueryFeeder<C> queries_;
  KeyCursor<C> keys_, values_;
  RingPosition<C.raw_stages> at_{0, 1};
  int fed_ = 0;  // tiles
  bool is_first_ = true;
};

/// By all lanes of each of the converter warps, of which this is number `warp`.
///
/// A warp converts 8 rows by 64 columns at a time, which is one 1024-byte atom of the swizzle. Four lanes share a row
/// of 16-byte pieces, and of eight neighbouring lanes the rows are r and r ^ 5: so they hit all banks, in the stored
/// panel as in the converted one, whose pieces are twice as many.
template <Config C>
class StoredConverter {
 public:
  __device__ __forceinline__ StoredConverter(const Context<C>& context, int warp)
      : context_(context),
        keys_(context.params, context.schedule),
        values_(context.params, context.schedule),
        warp_(warp) {
    const int group = threadIdx.x % kWarpSize / kPieces;
    row_ = group / 2 ^ (group % 2 == 0 ? 0 : 5);
    piece_ = threadIdx.x % kPieces;
  }

  __device__ __forceinline__ void run() {
    Barriers<C>& barriers = context_.barriers;
    const EightBitParams& scales = context_.params.eight_bit;
    for_each_stored(
        [&] {
          const bool more = keys_.next();
          if (more) {
            convert<panels(C.head_dim)>(keys_, scales.k, context_.smem + kPlan.k + k_at_.stage * kPlan.k_bytes,
                                        barriers.k_full[k_at_.stage], barriers.k_empty[k_at_.stage], k_at_.parity);
            k_at_.advance();
          }
          return more;
        },
        [&] {
          values_.next();
          convert<panels(C.head_dim_v)>(values_, scales.v, context_.smem + kPlan.v + v_at_.stage * kPlan.v_bytes,
                                        barriers.v_full[v_at_.stage], barriers.v_empty[v_at_.stage], v_at_.parity);
          v_at_.advance();
        });
  }

 private:
  static constexpr SmemPlan kPlan = smem_plan(C);
  static constexpr int kPieces = 4;  // of 16 bytes, in 64 columns
  static constexpr int kAtomRows = 8;
  static constexpr int kAtoms = C.block_n / kAtomRows;  // rows of them
  static constexpr int kConverterWarps = converter_warps(C);
  static constexpr int kAtomsPerWarp = (kAtoms + kConverterWarps - 1) / kConverterWarps;
  static constexpr int kPanelBytes = C.block_n * kPanelRowBytes;
  static_assert(C.block_n % kAtomRows == 0);

  /// Whether this warp's i-th row of atoms, `atom` in the block, exists.
  __device__ __forceinline__ static bool is_atom(int i, int atom) {
    return i < kAtomsPerWarp && ((i + 1) * kConverterWarps <= kAtoms || atom < kAtoms);
  }
  __device__ __forceinline__ int row_of(int atom) const { return (atom * kAtomRows + row_) * kPanelRowBytes; }

  template <int kWidePanels>
  __device__ __forceinline__ void convert(const KeyCursor<C>& cursor, const ScaleParams& scales, unsigned char* to,
                                          uint64_t& full, uint64_t& empty, uint32_t empty_parity) {
    const float* const of_head = scales.of(cursor.work().tile.sequence, cursor.head());
    const int last = cursor.work().k.used - 1;  // rows behind it are zeros, with a scale that exists
    float scale[kAtomsPerWarp];
#pragma unroll
    for (int i = 0; i < kAtomsPerWarp; ++i) {
      const int row = cursor.block() * C.block_n + (warp_ + i * kConverterWarps) * kAtomRows + row_;
      scale[i] = row > last ? 0.0F : ptx::ld_global_nc(of_head + (row >> scales.shift));
    }
    wait<C>(context_.barriers.raw_full[raw_at_.stage], raw_at_.parity);
    wait<C>(empty, empty_parity);
    const unsigned char* const from = context_.smem + kPlan.raw + raw_at_.stage * kPlan.raw_bytes;
    // Several pieces are read before the first is written: the compiler cannot know that they lie apart.
    constexpr int kAtomsAtOnce = kWidePanels <= 2 ? 2 : 1;
#pragma unroll
    for (int i = 0; i < kAtomsPerWarp; i += kAtomsAtOnce) {
      uint4 pieces[kAtomsAtOnce][kWidePanels];
#pragma unroll
      for (int a = 0; a < kAtomsAtOnce; ++a) {
        const int atom = warp_ + (i + a) * kConverterWarps;
#pragma unroll
        for (int panel = 0; panel < kWidePanels; ++panel) {
          if (is_atom(i + a, atom)) {
            pieces[a][panel] = *reinterpret_cast<const uint4*>(from + panel / 2 * kPanelBytes + row_of(atom) +
                                                               (piece_ + panel % 2 * kPieces ^ row_) * kPieceBytes);
          }
        }
      }
#pragma unroll
      for (int a = 0; a < kAtomsAtOnce; ++a) {
        const int atom = warp_ + (i + a) * kConverterWarps;
#pragma unroll
        for (int panel = 0; panel < kWidePanels; ++panel) {
          if (is_atom(i + a, atom)) {
            unsigned char* const wide = to + panel * kPanelBytes + row_of(atom);
            convert_piece(pieces[a][panel], scale[i + a < kAtomsPerWarp ? i + a : 0],
                          reinterpret_cast<uint4*>(wide + (2 * piece_ ^ row_) * kPieceBytes),
                          reinterpret_cast<uint4*>(wide + (2 * piece_ + 1 ^ row_) * kPieceBytes));
          }
        }
      }
    }
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);  // WGMMAs read what was written here
    __syncwarp();
    arrive<C>(context_.barriers.raw_empty[raw_at_.stage]);
    arrive<C>(full);
    raw_at_.advance();
  }

  __device__ __forceinline__ static void convert_piece(const uint4& piece, float scale, uint4* low, uint4* high) {
    const uint2 a = to_pairs<C.stored, C.rule.element>(piece.x, scale);
    const uint2 b = to_pairs<C.stored, C.rule.element>(piece.y, scale);
    *low = {a.x, a.y, b.x, b.y};
    const uint2 c = to_pairs<C.stored, C.rule.element>(piece.z, scale);
    const uint2 d = to_pairs<C.stored, C.rule.element>(piece.w, scale);
    *high = {c.x, c.y, d.x, d.y};
  }

  const Context<C>& context_;
  KeyCursor<C> keys_, values_;
  const int warp_;
  int row_, piece_;
  RingPosition<C.stages> k_at_{0, 1}, v_at_{0, 1};
  RingPosition<C.raw_stages> raw_at_;
};

}  // namespace strobe::sm90::forward
