// SPDX-License-Identifier: Apache-2.0
// Rows of floats into caches of any format, and back, on GPUs.
#pragma once

#include <string_view>

#include "gpu/variant/row_format_fields.h"
#include "gpu/variant/score_fields.h"
#include "kernels/auxiliary/coded_rows_params.h"
#include "runtime/device.h"
#include "runtime/variant.h"

namespace strobe::auxiliary {

constexpr std::string_view type_name(RowTransfer) { return "strobe::auxiliary::RowTransfer"; }
constexpr std::string_view name_of(RowTransfer transfer) {
  return transfer == RowTransfer::encode ? "encode" : transfer == RowTransfer::append ? "append" : "decode";
}
constexpr std::string_view type_name(const CodedRowsConfig&) { return "strobe::auxiliary::CodedRowsConfig"; }
constexpr auto fields_of(const CodedRowsConfig&) {
  using Config = CodedRowsConfig;
  return gpu::all_fields(gpu::field("format", &Config::format), gpu::field("element", &Config::element),
                         gpu::field("transfer", &Config::transfer));
}

}  // namespace strobe::auxiliary

namespace strobe::gpu {

// Checked calls, enqueued on the stream.
Status encode_rows(const ConstTensorView& rows, const TensorView& cache, const RowFormat& format,
                   const Execution& execution, const runtime::CudaDevice& device);
Status decode_rows(const ConstTensorView& cache, const TensorView& rows, const RowFormat& format,
                   const Execution& execution, const runtime::CudaDevice& device);
/// Rows whose sequence, page or entry does not exist are not written.
Status append_rows(const AppendRowsArguments& arguments, const RowFormat& format, const Execution& execution,
                   const runtime::CudaDevice& device);

}  // namespace strobe::gpu
