// SPDX-License-Identifier: Apache-2.0
// Rows of caches in a format: conversions of checked tensors.
#pragma once

#include "call/row_format.h"
#include "strobe/row_format.h"

namespace strobe::cpu {

void encode_rows(const ConstTensorView& rows, const TensorView& cache, const RowFormat& format,
                 const Execution& execution);
void decode_rows(const ConstTensorView& cache, const TensorView& rows, const RowFormat& format,
                 const Execution& execution);

void append_rows(const AppendRowsArguments& arguments, const RowFormat& format, const Execution& execution);

/// Writes every byte of one row, padding included.
void encode_row(const float* columns, const RowFormat& format, const RowBytes<std::byte>& to);

/// `count` elements of a dtype as float32.
void widen_columns(DType dtype, const std::byte* from, std::int64_t count, float* to);

}  // namespace strobe::cpu
