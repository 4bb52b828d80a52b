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

/// What the threads of a block tell one another.
template <AppendConfig C>
struct AppendShared {
  RowPlace places[kMostRows];
  // Of scales of rows: where they go, and the bits of the largest magnitude of each head of each row, in the order of
  // their items.
  long long scales[C.row_scales ? kMostRows : 1];
  unsigned largest[C.row_scales ? kMostBlockItems : 1];
};

/// Whether rows of `to` get scales of their own: the cache's, not those of q_out.
template <AppendConfig C, Element to>
constexpr bool kHasRowScales = C.row_scales && bytes_of(to) == 1;

/// Elements of new rows, as they were loaded.
template <AppendConfig C, Rotation rotation>
struct LoadedItem {
  using Words = VectorWords<C.source, append_vector(C)>;
  Words first;
  Words second;  // not of Rotation::none
};

/// Vectors of this many elements are computed with at once: of rotations four, which takes fewer registers than all.
template <AppendConfig C, Element to, Rotation rotation>
constexpr int part_of_vector() {
  constexpr int kVector = append_vector(C);
  constexpr bool kNeighbours = rotation == Rotation::interleaved && kVector > 1;
  return kNeighbours || kVector < 4 || (bytes_of(to) == 1 && rotation == Rotation::none) ? kVector : 4;
}

/// Elements [i, i + part) of an item's vectors, rotated. b is of its second vector, where it has one.
template <AppendConfig C, Rotation rotation, int part>
__device__ __forceinline__ void floats_of_item(const AppendParams& params, const LoadedItem<C, rotation>& loaded,
                                               const ItemPlace& item, int position, int i, float (&a)[part],
                                               float (&b)[part]) {
  constexpr bool kNeighbours = rotation == Rotation::interleaved && append_vector(C) > 1;
  to_floats(loaded.first, i, a);
  if constexpr (rotation != Rotation::none) {
    if (item.second >= 0) to_floats(loaded.second, i, b);
    if (item.angle >= 0) rotate_part<kNeighbours>(params, item.angle + (kNeighbours ? i / 2 : i), position, a, b);
  }
}

/// The bits of an item's largest magnitude. As integers magnitudes have the order of the numbers, and NaNs are the
/// largest.
template <AppendConfig C, Element to, Rotation rotation>
__device__ __forceinline__ unsigned largest_of_item(const AppendParams& params, const LoadedItem<C, rotation>& loaded,
                                                    const ItemPlace& item, int position) {
  constexpr int kPart = part_of_vector<C, to, rotation>();
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < append_vector(C); i += kPart) {
    float a[kPart];
    float b[kPart];
    floats_of_item<C, rotation>(params, loaded, item, position, i, a, b);
#pragma unroll
    for (int j = 0; j < kPart; ++j) {
      largest = max(largest, __float_as_uint(a[j]) & 0x7fffffffU);
      if constexpr (rotation != Rotation::none) {
        if (item.second >= 0) largest = max(largest, __float_as_uint(b[j]) & 0x7fffffffU);
      }
    }
  }
  return largest;
}

/// Rounds the elements of an item and stores them, divided by a cache's scale: of a row of its own that is NaN, zeros.
template <AppendConfig C, Element to, Rotation rotation>
__device__ __forceinline__ void finish_item(const AppendParams& params, const AppendedRows& rows,
                                            const LoadedItem<C, rotation>& loaded, const ItemPlace& item,
                                            const RowPlace& place, float scale_in) {
  constexpr int kVector = append_vector(C);
  const long long head = place.to + item.head * rows.to_head;
  if constexpr (rotation == Rotation::none && to == C.source) {  // as they are, NaNs and all
    store_words<to, kVector>(rows.to, head + item.first, loaded.first);
  } else {
    const bool is_finite = !kHasRowScales<C, to> || scale_in == scale_in;
    const Scale scale(is_finite ? scale_in : 1.0F);
    constexpr int kPart = part_of_vector<C, to, rotation>();
    VectorWords<to, kVector> first;
    VectorWords<to, kVector> second;
#pragma unroll
    for (int i = 0; i < kVector; i += kPart) {
      float a[kPart];
      float b[kPart];
      floats_of_item<C, rotation>(params, loaded, item, place.position, i, a, b);
      if constexpr (kHasRowScales<C, to>) {
        if (!is_finite) {
#pragma unroll
          for (int j = 0; j < kPart; ++j) a[j] = b[j] = 0.0F;
        }
      }
      if constexpr (rotation != Rotation::none) {
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

/// The scale of a row whose largest magnitude has these bits; NaN where it is not finite.
template <Element to>
__device__ __forceinline__ float scale_of_row(unsigned largest) {
  constexpr float kLargest = to == Element::int8 ? kLargestInt8 : kLargestE4m3;
  if (largest >= 0x7f800000U) return __uint_as_float(0x7fc00000U);
  return fmaxf(__fdiv_rn(__uint_as_float(largest), kLargest), kSmallestScale);
}

/// `same_columns`: the items of a thread are of the same columns, in rows that are `rows_apart` apart.
template <AppendConfig C, Element to, Rotation rotation, bool queries, bool same_columns>
__device__ __forceinline__ void append_block(const AppendParams& params, const AppendedRows& rows, int block,
                                             AppendShared<C>& shared) {
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
      if constexpr (queries) {
        shared.places[index] = place_of_query(params, own.first + index, near);
      } else {
        const CacheRow at = row_in_cache(params, rows, own.first + index, near);
        shared.places[index] = place_of(rows, at);
        if constexpr (kHasRowScales<C, to>) shared.scales[index] = scale_of(rows, at);
      }
    }
  }
  if constexpr (kHasRowScales<C, to>) {
#pragma unroll
    for (int i = 0; i < kMostItems; ++i) shared.largest[threadIdx.x + i * kAppendThreads] = 0;
  }
  __syncthreads();
  if constexpr (kHasRowScales<C, to>) {
#pragma unroll
    for (int i = 0; i < kMostItems; ++i) {
      const int index = static_cast<int>(threadIdx.x) + i * kAppendThreads;
      if (index >= own.items) break;
      const RowPlace place = shared.places[row_of(index)];
      if (place.to < 0) continue;
      atomicMax(&shared.largest[rows.items_per_head.quotient(index)],  // a chunk has whole heads
                largest_of_item<C, to, rotation>(params, loaded[i], item_of(index), place.position));
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kMostItems; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * kAppendThreads;
    if (index >= own.items) break;
    const RowPlace place = shared.places[row_of(index)];
    if (place.to < 0) continue;
    const ItemPlace item = item_of(index);
    float scale = 1.0F;
    if constexpr (kHasRowScales<C, to>) {
      scale = scale_of_row<to>(shared.largest[rows.items_per_head.quotient(index)]);
      if (item.first == 0) rows.row_scales[shared.scales[row_of(index)] + item.head * rows.scale_head] = scale;
    } else if constexpr (bytes_of(to) == 1) {
      scale = rows.scales[place.sequence * rows.scale_batch + item.head * rows.scale_head];
    }
    finish_item<C, to, rotation>(params, rows, loaded[i], item, place, scale);
  }
}

template <AppendConfig C, Element to, Rotation rotation, bool queries>
__device__ __forceinline__ void append_rows(const AppendParams& params, const AppendedRows& rows, int block,
                                            AppendShared<C>& shared) {
  if (C.aligned && rows.rows_apart > 0) {
    append_block<C, to, rotation, queries, true>(params, rows, block, shared);
  } else {
    append_block<C, to, rotation, queries, false>(params, rows, block, shared);
  }
}

/// Grid: the blocks of K, V and Q.
template <AppendConfig C>
__global__ void __launch_bounds__(kAppendThreads) append(const __grid_constant__ AppendParams params) {
  ptx::griddepcontrol_launch_dependents();
  __shared__ AppendShared<C> shared;
  int block = static_cast<int>(blockIdx.x);
  if (block < params.k.blocks) return append_rows<C, C.cache, C.rotation, false>(params, params.k, block, shared);
  block -= params.k.blocks;
  if (block < params.v.blocks) return append_rows<C, C.cache, Rotation::none, false>(params, params.v, block, shared);
  if constexpr (C.rotation != Rotation::none) {
    append_rows<C, C.source, C.rotation, true>(params, params.q, block - params.v.blocks, shared);
  }
}

}  // namespace strobe::auxiliary
