// SPDX-License-Identifier: Apache-2.0
// What happens to the scores and probabilities of the sixteen rows of one fragment.
#pragma once

#include "kernels/score/apply.h"
#include "kernels/score/mask.h"
#include "kernels/score/modifiers/block_bits.h"
#include "kernels/score/modifiers/dropout.h"
#include "kernels/score/softmax.h"
#include "kernels/sm80/forward/tile_work.h"

namespace strobe::sm80::forward {

template <Config C>
using Softmax = typename score::SoftmaxOf<C.rule, warp_keys(C)>::Type;

/// Queries from a thread's first row to its second, which is eight rows on.
template <Config C>
constexpr int kQueryStep = 8 / C.packed_heads;

template <Config C>
using FragmentMask = score::Mask<C.rule, warp_keys(C), kQueryStep<C>>;

template <Config C>
struct RowRules {
  using Transform = score::Transform<C.rule, warp_keys(C), kQueryStep<C>>;
  using Dropout = score::StepDropout<C.rule, warp_keys(C)>;

  Transform transform;
  [[no_unique_address]] score::BlockBitsOfRows<C.rule> bits;
  Dropout dropout;
};

/// The rules of all of a warp's rows.
template <Config C>
struct WarpRules {
  RowRules<C> of[fragments(C)];
};

template <Config C>
__device__ __forceinline__ RowRules<C> row_rules(const Params& params, const TileWork& work, int first_row) {
  const auto row_of = [&](int r) { return first_row + score::fragment_row(r); };
  const auto transformed_row = [&](int r) -> typename RowRules<C>::Transform::Row {
    return {.center = center_of<C>(work, row_of(r)),
            .batch = work.tile.sequence,
            .head = head_of<C>(work, row_of(r)),
            .query = min(row_of(r) / C.packed_heads, work.q.used - 1),
            .head_kv = head_kv_of(params, work),
            .first = sequence::first_positions<C.rule>(params, work.tile.sequence),
            .queries = work.q.used};
  };
  return {{params.score, work.k.used, transformed_row, score::captures_of<C.rule>(params)},
          {params.blocks, work.tile.sequence, work.tile.head, row_of(0), work.q.used},
          {params.score.dropout,
           {.head = score::head_of_whole(params.score.dropout, work.tile.sequence,
                                         head_in_batch<C>(params, work, row_of(0))),
            .query = row_of(0),
            .first = sequence::first_positions<C.rule>(params, work.tile.sequence)}}};
}

/// What the rows of a fragment see.
template <Config C>
__device__ __forceinline__ FragmentMask<C> row_mask(const Params& params, const TileWork& work, int first_row) {
  const auto keys = [&](int row) { return keys_of<C>(params, work, first_row + row); };
  const sequence::KeyRange rows[kRowsPerThread] = {keys(score::fragment_row(0)), keys(score::fragment_row(1))};
  const int query = (first_row + score::fragment_row(0)) / C.packed_heads;
  const typename FragmentMask<C>::Tree tree{params.tree, work, work.tile.sequence, query};
  return {keys(0), keys(kFragmentRows - 1), rows, work, tree};
}

template <Config C>
__device__ __forceinline__ WarpRules<C> warp_rules(const Params& params, const TileWork& work, int first_row) {
  if constexpr (fragments(C) == 1) {
    return {{row_rules<C>(params, work, first_row)}};
  } else {
    return {{row_rules<C>(params, work, first_row), row_rules<C>(params, work, first_row + kFragmentRows)}};
  }
}

}  // namespace strobe::sm80::forward
