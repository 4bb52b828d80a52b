// SPDX-License-Identifier: Apache-2.0
// K and V stored in 8 bits as 16-bit rows, sequence by sequence, for a forward with many query rows: each row is then
// converted once, and not by every tile that reads it. Results have the bits of kernels that convert for themselves.
#pragma once

#include "kernels/auxiliary/convert_cache_params.h"
#include "kernels/math/stored.h"

namespace strobe::auxiliary {

constexpr long long kNoRow = -1;  // of a page or an entry that does not exist, or behind those that are used

/// The rows of a sequence.
struct ConvertedSequence {
  long long start;  // the first one's place among all
  int rows, used;
};

__device__ __forceinline__ ConvertedSequence converted_sequence(const ConvertCacheParams& params, int sequence) {
  ConvertedSequence of{static_cast<long long>(sequence) * params.seqlen, params.seqlen, 0};
  if (params.cu_seqlens != nullptr) {  // of any numbers, none beyond the tensor
    const long long begin = max(params.cu_seqlens[sequence], 0);
    const long long end = min(static_cast<long long>(params.cu_seqlens[sequence + 1]), params.total);
    of.start = begin;
    of.rows = static_cast<int>(min(max(end - begin, 0LL), static_cast<long long>(params.seqlen)));
  }
  of.used = params.seqused == nullptr ? of.rows : min(max(params.seqused[sequence], 0), of.rows);
  return of;
}

/// Where rows [first, first + kConvertedRows) of a sequence lie in the cache, counted from head 0.
__device__ __forceinline__ void find_rows(const ConvertCacheParams& params, const Rows& rows, int sequence,
                                          long long start, int first, int used, long long (&offsets)[kConvertedRows]) {
  if (threadIdx.x >= kConvertedRows) return;
  const int row = first + threadIdx.x;
  long long offset = kNoRow;
  if (row < used) {
    sequence::CachePlace place{sequence, row};
    if (params.cu_seqlens != nullptr) {
      place = {0, static_cast<int>(start) + row};
    } else if (params.in_pages) {
      place = sequence::cache_place<true, false>(params.cache, sequence, row);
    } else if (params.has_entries) {
      place = sequence::cache_place<false, true>(params.cache, sequence, row);
    }
    if (place.entry != sequence::kNoEntry) offset = rows.offset(place.entry, place.row, 0);
  }
  offsets[threadIdx.x] = offset;
}

/// Converts some of the pieces of a CTA's rows.
template <ConvertCacheConfig C>
__device__ __forceinline__ void convert_rows(const ConvertedTensor& tensor, int sequence, int first, int rows,
                                             unsigned short* to, const long long (&offsets)[kConvertedRows]) {
  constexpr int kAtOnce = 8;  // pieces of a thread that are on their way
  const int pieces = rows * tensor.row_pieces;
  for (int begin = threadIdx.x; begin < pieces; begin += kAtOnce * kConvertThreads) {
    uint2 eight[kAtOnce];
    float scale[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int piece = begin + i * kConvertThreads;
      eight[i] = make_uint2(0, 0);
      scale[i] = 0.0F;
      if (piece >= pieces) continue;
      const int row = tensor.by_row_pieces.quotient(piece);
      const int in_row = piece - row * tensor.row_pieces;
      const int head = tensor.by_head_pieces.quotient(in_row);
      const long long offset = offsets[row];
      if (offset == kNoRow) continue;
      const auto* const from =
          reinterpret_cast<const unsigned char*>(tensor.from.data + offset + head * tensor.from.head_stride);
      const int column = (in_row - head * static_cast<int>(tensor.by_head_pieces.divisor)) * kConvertedElements;
      eight[i] = __ldg(reinterpret_cast<const uint2*>(from + column));
      scale[i] = __ldg(tensor.scales.of(sequence, head) + ((first + row) >> tensor.scales.shift));
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int piece = begin + i * kConvertThreads;
      if (piece >= pieces) continue;
      const uint2 low = to_pairs<C.stored, C.element>(eight[i].x, scale[i]);
      const uint2 high = to_pairs<C.stored, C.element>(eight[i].y, scale[i]);
      reinterpret_cast<uint4*>(to)[piece] = make_uint4(low.x, low.y, high.x, high.y);
    }
  }
}

/// Grid: two CTAs for each chunk of rows, of K and of V.
template <ConvertCacheConfig C>
__global__ void __launch_bounds__(kConvertThreads) convert_cache(const __grid_constant__ ConvertCacheParams params) {
  __shared__ long long offsets[kConvertedRows];
  const bool is_value = blockIdx.x % 2 != 0;
  const int chunk_of_all = blockIdx.x / 2;
  const int sequence = params.by_chunks.quotient(chunk_of_all);
  const int first = (chunk_of_all - sequence * params.chunks) * kConvertedRows;
  const ConvertedSequence of = converted_sequence(params, sequence);
  const int end = min(of.used + kRowsBehind, of.rows);
  if (first >= end) return;
  const ConvertedTensor& tensor = is_value ? params.v : params.k;
  if (tensor.to == nullptr) return;
  find_rows(params, tensor.from, sequence, of.start, first, of.used, offsets);
  __syncthreads();
  const long long start = (of.start + first) * tensor.row_pieces;
  convert_rows<C>(tensor, sequence, first, min(end - first, kConvertedRows), tensor.to + start * kConvertedElements,
                  offsets);
}

}  // namespace strobe::auxiliary
