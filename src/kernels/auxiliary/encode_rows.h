// SPDX-License-Identifier: Apache-2.0
// strobe::encode_rows and append_rows: rows of floats into a cache of any format, to the bytes that the CPU writes.
//
// A CTA writes one row of one head: warps find the scales of its groups, threads round its elements, into shared memory
// that was cleared, so that padding becomes zeros; then all bytes are copied.
#pragma once

#include "kernels/auxiliary/append_places.h"
#include "kernels/auxiliary/coded_rows_params.h"
#include "kernels/math/stored_values.h"

namespace strobe::auxiliary {

/// A row on its way.
template <StoredFormat F>
struct EncodedRow {
  static constexpr int kGroups = first_group(F, F.part_count);

  alignas(16) unsigned char bytes[F.row_bytes];  // the tail last
  float columns[columns_of(F)];
  float scales[kGroups == 0 ? 1 : kGroups];  // as they are read
};

/// Source and place of a row of all heads.
template <CodedRowsConfig C>
__device__ __forceinline__ int place_of_row(const CodedRowsParams& params, int row) {
  if constexpr (C.transfer == RowTransfer::append) {
    return static_cast<int>(place_in_cache(params.append, params.append.k, row, {0, 0}).to);
  } else {
    return row;
  }
}

template <Element element>
__device__ __forceinline__ float plain_value(const PlainRows& rows, int row, int head, int column) {
  const int batch = rows.by_batch_rows.quotient(row);
  const long long at = batch * rows.batch_stride + rows.by_batch_rows.remainder(row) * rows.row_stride +
                       head * rows.head_stride + column;
  if constexpr (element == Element::fp32) {
    return __ldg(static_cast<const float*>(rows.data) + at);
  } else {
    return to_float<element>(__ldg(static_cast<const unsigned short*>(rows.data) + at));
  }
}

/// By a warp: the scale of columns [first, last) of the row, of a part, to its group.
template <StoredFormat F, int part>
__device__ __forceinline__ void encode_scale(EncodedRow<F>& row, int group) {
  constexpr StoredPart kPart = part_of(F, part);
  constexpr float kLargestFloat = 3.402823466e+38F;
  constexpr int kWarp = 32;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = group * kPart.scale_columns;
  const int last = min(first + kPart.scale_columns, kPart.columns);
  float largest = 0.0F;
  bool finite = true;
  for (int column = first + lane; column < last; column += kWarp) {
    const float magnitude = fabsf(row.columns[first_column(F, part) + column]);
    finite = finite && magnitude <= kLargestFloat;
    largest = fmaxf(largest, magnitude);
  }
  finite = __all_sync(0xffffffffU, finite);
  largest = __uint_as_float(__reduce_max_sync(0xffffffffU, __float_as_uint(largest)));
  if (lane == 0) {
    const float scale = fmaxf(__fdiv_rn(largest, largest_of(kPart.element)), 0x1p-80F);
    const unsigned bits = scale_bits<kPart.scale>(scale, finite);
    store_bits<bytes_of(kPart.scale)>(row.bytes + kPart.scale_offset + group * bytes_of(kPart.scale), bits);
    row.scales[first_group(F, part) + group] = scale_value<kPart.scale>(bits);
  }
}

/// The bits of a column of a part.
template <StoredFormat F, int part>
__device__ __forceinline__ unsigned element_bits(const EncodedRow<F>& row, int column) {
  constexpr StoredPart kPart = part_of(F, part);
  float x = row.columns[first_column(F, part) + column];
  if constexpr (kPart.scale != StoredScale::none) {
    const float scale = row.scales[first_group(F, part) + column / kPart.scale_columns];
    x = scale == scale ? __fdiv_rn(x, scale) : 0.0F;
  }
  return bits_of_value<kPart.element>(x);
}

template <StoredFormat F, int part>
__device__ __forceinline__ void encode_elements(EncodedRow<F>& row) {
  constexpr StoredPart kPart = part_of(F, part);
  constexpr int kBits = bits_of(kPart.element);
  if constexpr (kBits == 4) {
    for (int pair = static_cast<int>(threadIdx.x); pair < kPart.columns / 2; pair += kCodedRowsThreads) {
      const unsigned both = element_bits<F, part>(row, 2 * pair) | element_bits<F, part>(row, 2 * pair + 1) << 4;
      row.bytes[kPart.offset + pair] = static_cast<unsigned char>(both);
    }
  } else {
    for (int column = static_cast<int>(threadIdx.x); column < kPart.columns; column += kCodedRowsThreads) {
      store_bits<kBits / 8>(row.bytes + kPart.offset + column * (kBits / 8), element_bits<F, part>(row, column));
    }
  }
}

/// `count` bytes to where they are as aligned as a row is.
template <int count, int alignment>
__device__ __forceinline__ void copy_bytes(const unsigned char* from, unsigned char* to) {
  constexpr int kBytes = alignment < 4 ? alignment : 4;
  for (int at = static_cast<int>(threadIdx.x) * kBytes; at < count; at += kCodedRowsThreads * kBytes) {
    unsigned bits = 0U;
#pragma unroll
    for (int i = 0; i < kBytes; ++i) {
      bits |= static_cast<unsigned>(from[at + i]) << 8 * i;
    }
    store_bits<kBytes>(to + at, bits);
  }
}

/// Grid: a CTA for each row of each head.
template <CodedRowsConfig C>
__global__ void __launch_bounds__(kCodedRowsThreads) encode_rows(const __grid_constant__ CodedRowsParams params) {
  constexpr StoredFormat kFormat = C.format;
  constexpr int kWarps = kCodedRowsThreads / 32;
  constexpr int kBody = kFormat.row_bytes - kFormat.tail_bytes;
  __shared__ EncodedRow<kFormat> row;
  __shared__ int place;
  const int thread = static_cast<int>(threadIdx.x);
  const int number = params.by_heads.quotient(static_cast<int>(blockIdx.x));
  const int head = params.by_heads.remainder(static_cast<int>(blockIdx.x));
  if (thread == 0) {
    place = place_of_row<C>(params, number);
  }
  for (int column = thread; column < columns_of(kFormat); column += kCodedRowsThreads) {
    row.columns[column] = plain_value<C.element>(params.columns, number, head, column);
  }
  for (int byte = thread; byte < kFormat.row_bytes; byte += kCodedRowsThreads) {
    row.bytes[byte] = 0;
  }
  __syncthreads();
  if (place < 0) {
    return;
  }
  for_each_part<kFormat>([&]<int part>() {
    for (int group = thread / 32; group < groups_of(part_of(kFormat, part)); group += kWarps) {
      encode_scale<kFormat, part>(row, group);
    }
  });
  __syncthreads();
  for_each_part<kFormat>([&]<int part>() { encode_elements<kFormat, part>(row); });
  __syncthreads();
  const StoredRowOf<unsigned char> to = params.cache.row<kFormat>(place, head);
  copy_bytes<kBody, power_in(kFormat.alignment)>(row.bytes, to.body);
  if constexpr (kFormat.tail_bytes > 0) {
    copy_bytes<kFormat.tail_bytes, alignment_at(kFormat, kBody, 0)>(row.bytes + kBody, to.tail);
  }
}

}  // namespace strobe::auxiliary
