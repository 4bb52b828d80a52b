// SPDX-License-Identifier: Apache-2.0
// Before a forward of sparse attention over rows in a format: those that each query's list names, in the order of the
// list, as rows of the elements that the forward multiplies.
#pragma once

#include "kernels/auxiliary/listed_rows_params.h"
#include "kernels/sequence/stored_pieces.h"

namespace strobe::auxiliary {

/// The rows of a CTA, of the list's first head; without an address behind those that the list names.
template <ListedRowsConfig C>
__device__ __forceinline__ void find_listed_rows(const ListedRowsParams& params, int list, int first, int used,
                                                 StoredRow (&rows)[kListedRows]) {
  if (threadIdx.x >= kListedRows) return;
  const int own = first + static_cast<int>(threadIdx.x);
  StoredRow row{nullptr, nullptr};
  if (own < used) {
    const int place = __ldg(params.places + static_cast<long long>(list) * params.width + own);
    row = params.cache.row<C.format>(place, params.lists == 1 ? 0 : list % params.lists);
  }
  rows[threadIdx.x] = row;
}

/// The row of another head.
template <ListedRowsConfig C>
__device__ __forceinline__ StoredRow row_of_head(const ListedRowsParams& params, const StoredRow& row, int head) {
  return {row.body + head * params.cache.head_stride, row.tail + head * C.format.tail_bytes};
}

template <ListedRowsConfig C>
__device__ __forceinline__ void store_piece(const StoredPiece<C.format>& stored, int column, bool exists,
                                            unsigned short* to, int piece) {
  if constexpr (C.element == Element::fp32) {
    float x[kPieceColumns];
    piece_values<C.format>(stored, column, x);
    float4* const at = reinterpret_cast<float4*>(to) + 2LL * piece;
    at[0] = exists ? make_float4(x[0], x[1], x[2], x[3]) : float4{};
    at[1] = exists ? make_float4(x[4], x[5], x[6], x[7]) : float4{};
  } else {
    reinterpret_cast<uint4*>(to)[piece] = exists ? packed_piece<C.element, C.format>(stored, column) : uint4{};
  }
}

/// Grid: a CTA for each kListedRows rows of a list. Several pieces of a thread are on their way at a time.
template <ListedRowsConfig C>
__global__ void __launch_bounds__(kListedRowsThreads)
    read_listed_rows(const __grid_constant__ ListedRowsParams params) {
  constexpr int kAtOnce = 4;
  constexpr int kColumns = columns_of(C.format);
  constexpr int kPieces = kColumns / kPieceColumns;
  __shared__ StoredRow rows[kListedRows];
  const int list = params.by_blocks.quotient(static_cast<int>(blockIdx.x));
  const int first = (static_cast<int>(blockIdx.x) - list * params.blocks) * kListedRows;
  const int used = params.counts[list];
  const int end = min(used + kListedRowsBehind, params.width);
  if (first >= end) return;
  find_listed_rows<C>(params, list, first, used, rows);
  __syncthreads();
  const int row_pieces = static_cast<int>(params.by_row_pieces.divisor);
  const int pieces = min(end - first, kListedRows) * row_pieces;
  constexpr int kElementHalves = halves_of(C.element);
  unsigned short* const to =
      params.to + (static_cast<long long>(list) * params.width + first) * row_pieces * kPieceColumns * kElementHalves;
  for (int begin = static_cast<int>(threadIdx.x); begin < pieces; begin += kAtOnce * kListedRowsThreads) {
    StoredPiece<C.format> stored[kAtOnce];
    int column[kAtOnce];
    bool exists[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int piece = min(begin + i * kListedRowsThreads, pieces - 1);
      const int row = params.by_row_pieces.quotient(piece);
      const int in_row = piece - row * row_pieces;
      const int head = in_row / kPieces;
      column[i] = (in_row - head * kPieces) * kPieceColumns;
      const StoredRow& own = rows[row];
      exists[i] = own.body != nullptr;
      stored[i] =
          exists[i] ? load_piece<C.format>(row_of_head<C>(params, own, head), column[i]) : StoredPiece<C.format>{};
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int piece = begin + i * kListedRowsThreads;
      if (piece < pieces) {
        store_piece<C>(stored[i], column[i], exists[i], to, piece);
      }
    }
  }
}

}  // namespace strobe::auxiliary
