// SPDX-License-Identifier: Apache-2.0
// strobe::append: new keys and values to their places in a cache, keys and queries rotated on the way.
//
// A thread loads its vectors of new rows first. While they are on their way, the block finds out where its rows go: the
// sequence by the cumulative lengths, the page by the sequence's length, the position. All numbers that come from
// memory are checked before they address anything: what has no place is not written.
#pragma once

#include "kernels/steps/append_convert.h"
#include "kernels/steps/append_params.h"

namespace strobe::steps {

/// Where a row goes, in elements from the first; less than 0: nowhere.
struct RowPlace {
  long long to;
  int sequence;
  int position;  // of its angles; less than 0: there are none
};

/// The last of `batch` sequences that begins at or before a row, by all lanes of a warp for the same row.
__device__ __forceinline__ int sequence_of_warp(const int* cu_seqlens, int batch, int row) {
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

/// The same by one thread, for a row at or behind sequence `low`: near it, most often.
__device__ __forceinline__ int sequence_from(const int* cu_seqlens, int batch, int row, int low) {
  int step = 1;
  while (step < batch - low && cu_seqlens[low + step] <= row) {
    low += step;
    step *= 2;
  }
  int high = min(low + step, batch);
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    (cu_seqlens[middle] <= row ? low : high) = middle;
  }
  return low;
}

/// A row of a sequence.
struct RowOfSequence {
  int sequence;
  int index;  // less than 0: of no sequence
};

/// `near`: a sequence at or before that of the row.
__device__ __forceinline__ RowOfSequence row_of_sequence(const AppendedRows& rows, int batch, int row, int near) {
  if (rows.cu_seqlens == nullptr) {
    const int sequence = rows.seqlen.quotient(row);
    return {sequence, row - sequence * static_cast<int>(rows.seqlen.divisor)};
  }
  const int sequence = sequence_from(rows.cu_seqlens, batch, row, near);
  const int begin = rows.cu_seqlens[sequence];
  const bool inside = row >= begin && row < rows.cu_seqlens[sequence + 1];
  return {sequence, inside ? row - begin : -1};
}

/// Less than 0 for a position without angles.
__device__ __forceinline__ int position_of(const AppendParams& params, const AppendedRows& rows, int row,
                                           const RowOfSequence& of, bool in_order) {
  long long position;
  if (rows.positions != nullptr) {
    position = rows.cu_seqlens != nullptr ? rows.positions[row]
                                          : rows.positions[of.sequence * rows.positions_batch + of.index];
  } else {
    position = params.cache_seqlens[of.sequence];
    if (params.leftpad != nullptr) position -= params.leftpad[of.sequence];
    if (position >= 0 && in_order) position += of.index;
  }
  return position >= 0 && position < params.positions ? static_cast<int>(position) : -1;
}

/// The place of a new row in the cache.
__device__ __forceinline__ RowPlace place_in_cache(const AppendParams& params, const AppendedRows& rows, int row,
                                                   int near) {
  constexpr RowPlace kNowhere{-1, 0, -1};
  const RowOfSequence of = row_of_sequence(rows, params.batch, row, near);
  if (of.index < 0) return kNowhere;
  const int position = params.pairs > 0 ? position_of(params, params.k, row, of, true) : 0;
  const int length = params.cache_seqlens[of.sequence];
  const long long behind = static_cast<long long>(length) + of.index;
  if (length < 0 || position < 0 || behind > 0x7fffffff) return kNowhere;
  int entry = of.sequence;
  int entry_row = static_cast<int>(behind);
  if (params.page_table != nullptr) {
    const int index = params.page_size.quotient(entry_row);
    if (index >= params.max_pages) return kNowhere;
    entry_row -= index * static_cast<int>(params.page_size.divisor);
    entry = params.page_table[of.sequence * params.page_table_batch + index];
  } else {
    if (entry_row >= params.seqlen) return kNowhere;
    if (params.cache_batch_idx != nullptr) entry = params.cache_batch_idx[of.sequence];
  }
  if (entry < 0 || entry >= params.entries) return kNowhere;
  return {entry * rows.to_batch + entry_row * rows.to_row, of.sequence, position};
}

/// The place of a rotated query.
__device__ __forceinline__ RowPlace place_of_query(const AppendParams& params, int row, int near) {
  const RowOfSequence of = row_of_sequence(params.q, params.batch, row, near);
  if (of.index < 0) return {-1, 0, -1};
  const long long to = params.q.cu_seqlens != nullptr ? row * params.q.to_row
                                                      : of.sequence * params.q.to_batch + of.index * params.q.to_row;
  return {to, of.sequence, position_of(params, params.q, row, of, params.q_in_order)};
}

/// Where an item lies in its row.
struct ItemPlace {
  int head;
  int first;    // the column of its vector, or of the first of two
  int second;   // of the second, or -1
  int angle;    // the first of its angles, or -1
};

template <AppendConfig C, Rotation rotation>
__device__ __forceinline__ ItemPlace item_place(const AppendParams& params, const AppendedRows& rows, int item) {
  constexpr int kVector = append_vector(C);
  const int head = rows.items_per_head.quotient(item);
  const int own = item - head * static_cast<int>(rows.items_per_head.divisor);
  if constexpr (rotation == Rotation::none) {
    return {head, own * kVector, -1, -1};
  } else {
    if (own >= rows.rotated_items) return {head, 2 * params.pairs + (own - rows.rotated_items) * kVector, -1, -1};
    if constexpr (rotation == Rotation::halves) return {head, own * kVector, params.pairs + own * kVector, own * kVector};
    if constexpr (kVector == 1) return {head, 2 * own, 2 * own + 1, own};
    return {head, own * kVector, -1, own * kVector / 2};
  }
}

/// Elements of new rows, as they were loaded.
template <AppendConfig C, Rotation rotation>
struct LoadedItem {
  using Words = VectorWords<C.source, append_vector(C)>;
  Words first;
  Words second;  // not of Rotation::none
};

/// Rounds the elements of an item and stores them.
template <AppendConfig C, Stored to, Rotation rotation>
__device__ __forceinline__ void finish_item(const AppendParams& params, const AppendedRows& rows,
                                            const LoadedItem<C, rotation>& loaded, const ItemPlace& item,
                                            const RowPlace& place) {
  constexpr int kVector = append_vector(C);
  const long long head = place.to + item.head * rows.to_head;
  if constexpr (rotation == Rotation::none && to == C.source) {  // as they are, NaNs and all
    store_words<to, kVector>(rows.to, head + item.first, loaded.first);
  } else {
    float a[kVector];
    to_floats<C.source>(loaded.first, a);
    float b[kVector];
    if constexpr (rotation != Rotation::none) {
      if (item.second >= 0) to_floats<C.source>(loaded.second, b);
      if (item.angle >= 0) rotate_item<C, rotation>(params, item.angle, place.position, a, b);
    }
    float scale = 1.0F;
    if constexpr (stored_bytes(to) == 1) {
      scale = rows.scales[place.sequence * rows.scale_batch + item.head * rows.scale_head];
    }
    store_words<to, kVector>(rows.to, head + item.first, from_floats<to>(a, scale));
    if constexpr (rotation != Rotation::none) {
      if (item.second >= 0) store_words<to, kVector>(rows.to, head + item.second, from_floats<to>(b, scale));
    }
  }
}

/// The rows of one block.
struct BlockRows {
  int first;
  int count;
  int chunk;
  int items;  // of all of them

  __device__ __forceinline__ BlockRows(const AppendedRows& rows, int block) {
    const int group = block / rows.chunks;
    chunk = block - group * rows.chunks;
    first = group * rows.rows_per_block;
    count = min(rows.rows_per_block, rows.rows - first);
    const int chunk_items = static_cast<int>(rows.items_of_chunk.divisor);
    items = count * min(chunk_items, rows.items - chunk * chunk_items);
  }
};

template <AppendConfig C, Stored to, Rotation rotation, bool queries>
__device__ __forceinline__ void append_rows(const AppendParams& params, const AppendedRows& rows, int block,
                                            RowPlace (&places)[kMostRows]) {
  using Item = LoadedItem<C, rotation>;
  const BlockRows own(rows, block);
  const auto row_of = [&](int index) { return rows.items_of_chunk.quotient(index); };
  const auto item_of = [&](int index) {
    const int chunk_items = static_cast<int>(rows.items_of_chunk.divisor);
    return item_place<C, rotation>(params, rows, index - row_of(index) * chunk_items + own.chunk * chunk_items);
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
    const int near =
        rows.cu_seqlens == nullptr ? 0 : sequence_of_warp(rows.cu_seqlens, params.batch, own.first);
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

/// Grid: the blocks of K, V and Q.
template <AppendConfig C>
__global__ void __launch_bounds__(kAppendThreads) append(const __grid_constant__ AppendParams params) {
  __shared__ RowPlace places[kMostRows];
  int block = static_cast<int>(blockIdx.x);
  if (block < params.k.blocks) return append_rows<C, C.cache, C.rotation, false>(params, params.k, block, places);
  block -= params.k.blocks;
  if (block < params.v.blocks) return append_rows<C, C.cache, Rotation::none, false>(params, params.v, block, places);
  if constexpr (C.rotation != Rotation::none) {
    append_rows<C, C.source, C.rotation, true>(params, params.q, block - params.v.blocks, places);
  }
}

}  // namespace strobe::steps
