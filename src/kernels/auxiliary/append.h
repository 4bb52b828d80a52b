// SPDX-License-Identifier: Apache-2.0
// strobe::append: new keys and values to their places in a cache, keys and queries rotated on the way.
//
// A thread loads its vectors of new rows first. While they are on their way, the block finds out where its rows go: the
// sequence by the cumulative lengths, the page by the sequence's length, the position. What has no place is not
// written.
#pragma once

#include "kernels/auxiliary/append_convert.h"
#include "kernels/auxiliary/append_places.h"
#include "kernels/ptx/grid.h"

namespace strobe::auxiliary {

/// The last of `batch` sequences that begins at or before a row, the same one of all lanes of a warp.
__device__ __forceinline__ int sequence_of_warp(const int* cu_seqlens, int batch, int row) {
  const int one_each = min(row, batch - 1);  // decodes
  if (is_in_sequence(cu_seqlens, one_each, row)) return one_each;
  int low = 0;
  int high = batch;
  while (high - low > 1) {
    const int step = (high - low + 31) / 32;
    const int probe = low + (static_cast<int>(threadIdx.x % 32) + 1) * step;
    const bool before = probe < high && cu_seqlens[probe] <= row;
    const int count = __popc(__ballot_sync(0xffffffffU, before));
    low += count * step;
    high = min(high, low + step);
  }
  return low;
}

/// Elements of new rows, as they were loaded.
template <AppendConfig C, Rotation rotation>
struct LoadedItem {
  using Words = VectorWords<C.source, append_vector(C)>;
  Words first;
  Words second;  // not of Rotation::none
};

/// Rounds the elements of an item and stores them.
template <AppendConfig C, Element to, Rotation rotation>
__device__ __forceinline__ void finish_item(const AppendParams& params, const AppendedRows& rows,
                                            const LoadedItem<C, rotation>& loaded, const ItemPlace& item,
                                            const RowPlace& place) {
  constexpr int kVector = append_vector(C);
  const long long head = place.to + item.head * rows.to_head;
  if constexpr (rotation == Rotation::none && to == C.source) {  // as they are, NaNs and all
    store_words<to, kVector>(rows.to, head + item.first, loaded.first);
  } else {
    constexpr bool kScaled = bytes_of(to) == 1;
    const Scale scale(kScaled ? rows.scales[place.sequence * rows.scale_batch + item.head * rows.scale_head] : 1.0F);
    constexpr bool kNeighbours = rotation == Rotation::interleaved && kVector > 1;
    // At once: four are fewer registers than a rotation of all takes.
    constexpr int kPart = kNeighbours || kVector < 4 || (kScaled && rotation == Rotation::none) ? kVector : 4;
    VectorWords<to, kVector> first;
    VectorWords<to, kVector> second;
#pragma unroll
    for (int i = 0; i < kVector; i += kPart) {
      float a[kPart];
      float b[kPart];
      to_floats(loaded.first, i, a);
      if constexpr (rotation != Rotation::none) {
        if (item.second >= 0) to_floats(loaded.second, i, b);
        if (item.angle >= 0)
          rotate_part<kNeighbours>(params, item.angle + (kNeighbours ? i / 2 : i), place.position, a, b);
        if (item.second >= 0) from_floats(b, scale, i, second);
      }
      from_floats(a, scale, i, first);
    }
    store_words<to, kVector>(rows.to, head + item.first, first);
    if constexpr (rotation != Rotation::none) {
      if (item.second >= 0) store_words<to, kVector>(rows.to, head + item.second, second);
    }
  }
}

/// `same_columns`: the items of a thread are of the same columns, in rows that are `rows_apart` apart.
template <AppendConfig C, Element to, Rotation rotation, bool queries, bool same_columns>
__device__ __forceinline__ void append_block(const AppendParams& params, const AppendedRows& rows, int block,
                                             RowPlace (&places)[kMostRows]) {
  using Item = LoadedItem<C, rotation>;
  const BlockRows own(rows, block);
  const auto any_row = [&](int index) { return rows.items_of_chunk.quotient(index); };
  const auto any_item = [&](int index) {
    const int chunk_items = static_cast<int>(rows.items_of_chunk.divisor);
    return item_place<C, rotation>(params, rows, index - any_row(index) * chunk_items + own.chunk * chunk_items);
  };
  const int first_row = any_row(static_cast<int>(threadIdx.x));
  const ItemPlace first_item = any_item(static_cast<int>(threadIdx.x));
  const auto row_of = [&](int index) {
    if constexpr (!same_columns) return any_row(index);
    return first_row + (index - static_cast<int>(threadIdx.x)) / kAppendThreads * rows.rows_apart;
  };
  const auto item_of = [&](int index) {
    if constexpr (!same_columns) return any_item(index);
    return first_item;
  };
  Item loaded[kMostItems];
#pragma unroll
  for (int i = 0; i < kMostItems; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * kAppendThreads;
    if (index >= own.items) break;
    const int row = own.first + row_of(index);
    long long from = row * rows.from_row;
    if (rows.cu_seqlens == nullptr) {
      const int sequence = rows.seqlen.quotient(row);
      from += sequence * (rows.from_batch - static_cast<int>(rows.seqlen.divisor) * rows.from_row);
    }
    const ItemPlace item = item_of(index);
    from += item.head * rows.from_head;
    loaded[i].first = load_words<C.source, append_vector(C)>(rows.from, from + item.first);
    if constexpr (rotation != Rotation::none) {
      if (item.second >= 0) loaded[i].second = load_words<C.source, append_vector(C)>(rows.from, from + item.second);
    }
  }
  if (static_cast<int>(threadIdx.x) < (own.count + 31) / 32 * 32) {
    const bool packed = rows.cu_seqlens != nullptr;
    const NearSequence near{packed ? sequence_of_warp(rows.cu_seqlens, params.batch, own.first) : 0, own.first};
    const int index = static_cast<int>(threadIdx.x);
    if (index < own.count) {
      places[index] = queries ? place_of_query(params, own.first + index, near)
                              : place_in_cache(params, rows, own.first + index, near);
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kMostItems; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * kAppendThreads;
    if (index >= own.items) break;
    const RowPlace place = places[row_of(index)];
    if (place.to >= 0) finish_item<C, to, rotation>(params, rows, loaded[i], item_of(index), place);
  }
}

template <AppendConfig C, Element to, Rotation rotation, bool queries>
__device__ __forceinline__ void append_rows(const AppendParams& params, const AppendedRows& rows, int block,
                                            RowPlace (&places)[kMostRows]) {
  if (C.aligned && rows.rows_apart > 0) {
    append_block<C, to, rotation, queries, true>(params, rows, block, places);
  } else {
    append_block<C, to, rotation, queries, false>(params, rows, block, places);
  }
}

/// Grid: the blocks of K, V and Q.
template <AppendConfig C>
__global__ void __launch_bounds__(kAppendThreads) append(const __grid_constant__ AppendParams params) {
  ptx::griddepcontrol_launch_dependents();
  __shared__ RowPlace places[kMostRows];
  int block = static_cast<int>(blockIdx.x);
  if (block < params.k.blocks) return append_rows<C, C.cache, C.rotation, false>(params, params.k, block, places);
  block -= params.k.blocks;
  if (block < params.v.blocks) return append_rows<C, C.cache, Rotation::none, false>(params, params.v, block, places);
  if constexpr (C.rotation != Rotation::none) {
    append_rows<C, C.source, C.rotation, true>(params, params.q, block - params.v.blocks, places);
  }
}

}  // namespace strobe::auxiliary
