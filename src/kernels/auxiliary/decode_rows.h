// SPDX-License-Identifier: Apache-2.0
// strobe::decode_rows: what rows of a cache of any format hold, as floats. A CTA reads one row of one head.
#pragma once

#include "kernels/auxiliary/coded_rows_params.h"
#include "kernels/sequence/stored_pieces.h"

namespace strobe::auxiliary {

/// What column `column` of a part holds, rounded to float32.
template <StoredFormat F, int part>
__device__ __forceinline__ float stored_value(const StoredRow& row, int column) {
  constexpr StoredPart kPart = part_of(F, part);
  constexpr int kBits = bits_of(kPart.element);
  const unsigned char* const elements = stored_byte<F, kPart.offset>(row);
  unsigned bits;
  if constexpr (kBits == 4) {
    bits = load_bits<1>(elements + column / 2) >> column % 2 * 4 & 15U;
  } else {
    bits = load_bits<kBits / 8>(elements + column * (kBits / 8));
  }
  const float value = value_of_bits<kPart.element>(bits);
  if constexpr (kPart.scale == StoredScale::none) {
    return value;
  } else {
    return __fmul_rn(value, scale_value<kPart.scale>(load_scale<F, part>(row, column)));
  }
}

/// Grid: a CTA for each row of each head.
template <CodedRowsConfig C>
__global__ void __launch_bounds__(kCodedRowsThreads) decode_rows(const __grid_constant__ CodedRowsParams params) {
  constexpr StoredFormat kFormat = C.format;
  const int number = params.by_heads.quotient(static_cast<int>(blockIdx.x));
  const int head = params.by_heads.remainder(static_cast<int>(blockIdx.x));
  const StoredRowOf<unsigned char> at = params.cache.row<kFormat>(number, head);
  const StoredRow row{at.body, at.tail};
  const PlainRows& to = params.columns;
  const int batch = to.by_batch_rows.quotient(number);
  const long long first =
      batch * to.batch_stride + to.by_batch_rows.remainder(number) * to.row_stride + head * to.head_stride;
  for_each_part<kFormat>([&]<int part>() {
    constexpr StoredPart kPart = part_of(kFormat, part);
    for (int column = static_cast<int>(threadIdx.x); column < kPart.columns; column += kCodedRowsThreads) {
      const float value = stored_value<kFormat, part>(row, column);
      const long long place = first + first_column(kFormat, part) + column;
      if constexpr (C.element == Element::fp32) {
        static_cast<float*>(to.data)[place] = value;
      } else {
        static_cast<unsigned short*>(to.data)[place] = static_cast<unsigned short>(pack<C.element>(value, 0.0F));
      }
    }
  });
}

}  // namespace strobe::auxiliary
