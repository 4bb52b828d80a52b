// SPDX-License-Identifier: Apache-2.0
// Where the rows of an append go, and how they are cut into the items of threads. All numbers that come from memory are
// checked before they address anything. Plain C++ without std headers, shared by the kernel and the host's tests.
#pragma once

#include "kernels/auxiliary/append_params.h"

namespace strobe::auxiliary {

/// Where a row goes, in elements from the first; less than 0: nowhere.
struct RowPlace {
  long long to;
  int sequence;
  int position;  // of its angles; less than 0: there are none
};

/// A row of the cache.
struct CacheRow {
  int entry;  // or page; less than 0: there is no such row
  int row;    // of the entry or page
  int sequence;
  int position;  // of its angles
};

/// The last of `batch` sequences that begins at or before a row, which is at or behind sequence `low`: near it, most
/// often.
constexpr int sequence_from(const int* cu_seqlens, int batch, int row, int low) {
  int step = 1;
  while (step < batch - low && cu_seqlens[low + step] <= row) {
    low += step;
    step *= 2;
  }
  int high = low + step < batch ? low + step : batch;
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

/// The sequence of `row`, or one before it: where the search for rows behind it begins.
struct NearSequence {
  int sequence;
  int row;
};

/// Whether a row is of this sequence.
constexpr bool is_in_sequence(const int* cu_seqlens, int sequence, int row) {
  const int begin = cu_seqlens[sequence];
  const int end = cu_seqlens[sequence + 1];  // two loads at once
  return begin <= row && row < end;
}

constexpr RowOfSequence row_of_sequence(const AppendedRows& rows, int batch, int row, const NearSequence& near) {
  if (rows.cu_seqlens == nullptr) {
    const int sequence = rows.seqlen.quotient(row);
    return {sequence, row - sequence * static_cast<int>(rows.seqlen.divisor)};
  }
  // Decodes have a row each.
  int sequence = near.sequence + (row - near.row);
  if (sequence >= batch || !is_in_sequence(rows.cu_seqlens, sequence, row)) {
    sequence = sequence_from(rows.cu_seqlens, batch, row, near.sequence);
  }
  const int begin = rows.cu_seqlens[sequence];
  const bool inside = begin >= 0 && row >= begin && row < rows.cu_seqlens[sequence + 1];
  return {sequence, inside ? row - begin : -1};
}

/// Less than 0 for a position without angles.
constexpr int position_of(const AppendParams& params, const AppendedRows& rows, int row, const RowOfSequence& of,
                          bool in_order) {
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

/// Where in the cache a new row goes.
constexpr CacheRow row_in_cache(const AppendParams& params, const AppendedRows& rows, int row,
                                const NearSequence& near) {
  constexpr CacheRow kNowhere{-1, 0, 0, -1};
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
  return {entry, entry_row, of.sequence, position};
}

constexpr RowPlace place_of(const AppendedRows& rows, const CacheRow& at) {
  if (at.entry < 0) return {-1, 0, -1};
  return {at.entry * rows.to_batch + at.row * rows.to_row, at.sequence, at.position};
}

/// The place of a new row in the cache.
constexpr RowPlace place_in_cache(const AppendParams& params, const AppendedRows& rows, int row,
                                  const NearSequence& near) {
  return place_of(rows, row_in_cache(params, rows, row, near));
}

/// The scale of a row's first head, in elements from the first: of scales of rows.
constexpr long long scale_of(const AppendedRows& rows, const CacheRow& at) {
  return at.entry * rows.scale_batch + at.row * rows.scale_row;
}

/// The place of a rotated query.
constexpr RowPlace place_of_query(const AppendParams& params, int row, const NearSequence& near) {
  const RowOfSequence of = row_of_sequence(params.q, params.batch, row, near);
  if (of.index < 0) return {-1, 0, -1};
  const long long to = params.q.cu_seqlens != nullptr ? row * params.q.to_row
                                                      : of.sequence * params.q.to_batch + of.index * params.q.to_row;
  return {to, of.sequence, position_of(params, params.q, row, of, params.q_in_order)};
}

/// Where an item lies in its row.
struct ItemPlace {
  int head;
  int first;   // the column of its vector, or of the first of two
  int second;  // of the second, or -1
  int angle;   // the first of its angles, or -1
};

template <AppendConfig C, Rotation rotation>
constexpr ItemPlace item_place(const AppendParams& params, const AppendedRows& rows, int item) {
  constexpr int kVector = append_vector(C);
  const int head = rows.items_per_head.quotient(item);
  const int own = item - head * static_cast<int>(rows.items_per_head.divisor);
  if constexpr (rotation == Rotation::none) {
    return {head, own * kVector, -1, -1};
  } else {
    if (own >= rows.rotated_items) return {head, 2 * params.pairs + (own - rows.rotated_items) * kVector, -1, -1};
    if constexpr (rotation == Rotation::halves)
      return {head, own * kVector, params.pairs + own * kVector, own * kVector};
    if constexpr (kVector == 1) return {head, 2 * own, 2 * own + 1, own};
    return {head, own * kVector, -1, own * kVector / 2};
  }
}

/// The rows of one block.
struct BlockRows {
  int first;
  int count;
  int chunk;
  int items;  // of all of them

  constexpr BlockRows(const AppendedRows& rows, int block) {
    const int group = block / rows.chunks;
    chunk = block - group * rows.chunks;
    first = group * rows.rows_per_block;
    count = rows.rows - first < rows.rows_per_block ? rows.rows - first : rows.rows_per_block;
    const int chunk_items = static_cast<int>(rows.items_of_chunk.divisor);
    const int rest = rows.items - chunk * chunk_items;
    items = count * (rest < chunk_items ? rest : chunk_items);
  }
};

}  // namespace strobe::auxiliary
