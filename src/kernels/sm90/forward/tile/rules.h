// SPDX-License-Identifier: Apache-2.0
// What happens to the scores and probabilities of one warpgroup's rows of a tile.
#pragma once

#include "kernels/score/apply.h"
#include "kernels/score/mask.h"
#include "kernels/score/modifiers/bias.h"
#include "kernels/score/modifiers/block_bits.h"
#include "kernels/score/modifiers/dropout.h"
#include "kernels/sm90/forward/barriers.h"
#include "kernels/sm90/forward/config.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/smem.h"
#include "kernels/sm90/forward/tile/rows.h"
#include "kernels/sm90/forward/tile/split.h"
#include "kernels/sm90/forward/tile/work.h"
#include "kernels/sm90/tile/fragment.h"

namespace strobe::sm90::forward {

// A thread's second row is eight rows after its first, in the same sixteen.
template <Config C>
constexpr int kQueryStep = 8 / C.packed_heads;

/// Whether consumers fetch the bias to registers.
template <Config C>
constexpr bool kFetchesBias = C.rule.bias && C.bias_stages == 0;

/// A warpgroup finds what its warps need of a text together.
struct WarpgroupOfText {
  static constexpr int kWarps = kWarpsPerWarpgroup;
  __device__ __forceinline__ static int warp() { return warp_of_warpgroup(); }
  __device__ __forceinline__ static void sync() {
    ptx::bar_sync(kTextOf + static_cast<int>(threadIdx.x) / kWarpgroupSize, kWarpgroupSize);
  }
};

template <Config C>
struct TileRules {
  using Mask = score::Mask<C.rule, C.block_n, kQueryStep<C>, C.masks_by_words>;
  using Transform = score::Transform<C.rule, C.block_n, kQueryStep<C>, kFetchesBias<C>, keeps_text(C), WarpgroupOfText>;
  using Dropout = score::Dropout<C.rule, C.block_n>;

  Mask mask;
  Transform transform;
  [[no_unique_address]] score::BlockBitsOfRows<C.rule> bits;
  Dropout dropout;
};

/// This warpgroup's shared memory for what is kept of a text.
template <Config C>
__device__ __forceinline__ unsigned* text_words_of(int warpgroup) {
  if constexpr (keeps_text(C)) {
    extern __shared__ __align__(1024) unsigned char smem[];
    return reinterpret_cast<unsigned*>(smem + smem_plan(C).text + warpgroup * text_bytes(C));
  } else {
    return nullptr;
  }
}

template <Config C>
__device__ __forceinline__ TileRules<C> tile_rules(const Params& params, const TileWork& work, int warpgroup) {
  using Rules = TileRules<C>;
  const int first = work.row_of(warpgroup);
  const auto keys_of_row = [&](int i) { return keys_of<C>(params, work, first + i); };
  const sequence::KeyRange rows[kRowsPerThread] = {keys_of_row(warpgroup_row(0)), keys_of_row(warpgroup_row(1))};
  const auto transformed_row = [&](int r) -> typename Rules::Transform::Row {
    const int row = first + warpgroup_row(r);
    return {.center = center_of<tiling(C)>(work, row),
            .batch = work.tile.sequence,
            .head = head_of<C>(work, row),
            .query = min(row / C.packed_heads, work.q.used - 1),
            .head_kv = params.by_heads_per_kv.quotient(work.tile.head),
            .first = sequence::first_positions<C.rule>(params, work.tile.sequence),
            .queries = work.q.used,
            .place = row};
  };
  const int row = first + warpgroup_row(0);
  const typename Rules::Mask::Tree tree{params.tree, work, work.tile.sequence, row / C.packed_heads};
  return {{keys_of_row(0), keys_of_row(kRowsPerWarpgroup - 1), rows, work, tree},
          {params.score, work.k.used, transformed_row, score::captures_of<C.rule>(params), text_words_of<C>(warpgroup)},
          {params.blocks, work.tile.sequence, work.tile.head, row, work.q.used},
          {params.score.dropout,
           {.head = score::head_of_whole(params.score.dropout, work.tile.sequence, head_in_batch<C>(params, work, row)),
            .query = row,
            .first = sequence::first_positions<C.rule>(params, work.tile.sequence)}}};
}

/// The bias of a tile's first block, which is fetched before the block's products are issued; the rules are found under
/// them.
template <Config C>
__device__ __forceinline__ score::BiasTile<C.rule, C.block_n, kFetchesBias<C>> first_bias(const Params& params,
                                                                                          const TileWork& work,
                                                                                          int warpgroup, int n) {
  if constexpr (kFetchesBias<C>) {
    return tile_rules<C>(params, work, warpgroup).transform.fetch(n);
  } else {
    return {};
  }
}

}  // namespace strobe::sm90::forward
