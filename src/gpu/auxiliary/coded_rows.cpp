// SPDX-License-Identifier: Apache-2.0
#include "gpu/auxiliary/coded_rows.h"

#include <fmt/format.h>

#include <string>

#include "call/checked.h"
#include "gpu/call/find_kernel.h"
#include "gpu/params/append_places.h"
#include "gpu/params/element.h"
#include "gpu/params/row_format.h"
#include "gpu/plan/supported.h"
#include "gpu/variant/architecture.h"
#include "runtime/launch.h"

namespace strobe::gpu {
namespace {

using auxiliary::AppendParams;
using auxiliary::CodedRowsConfig;
using auxiliary::CodedRowsParams;
using auxiliary::RowTransfer;

runtime::Variant coded_rows_variant(const CodedRowsConfig& config, std::string_view architecture) {
  const std::string_view name = config.transfer == RowTransfer::decode ? "decode_rows" : "encode_rows";
  return {.name = fmt::format("{} ({})", name, short_text(config)),
          .include = fmt::format("kernels/auxiliary/{}.h", name),
          .expression = fmt::format("strobe::auxiliary::{}<{}>", name, cpp_text(config)),
          .architecture = std::string(architecture),
          .options = {}};
}

/// Rows [.., rows, heads, columns], of several batch entries or pages, or packed.
auxiliary::PlainRows plain_rows_of(const ConstTensorView& rows) {
  const bool packed = rows.rank == 3;
  const std::size_t at = packed ? 0 : 1;
  return {.data = const_cast<void*>(rows.data),
          .batch_stride = packed ? 0 : rows.strides[0],
          .row_stride = rows.strides[at],
          .head_stride = rows.strides[at + 1],
          .by_batch_rows = divisor_of(rows.shape[at])};
}

/// Where new rows go: a place is an entry's or a page's row, all of them counted.
AppendParams append_params(const AppendRowsArguments& a) {
  AppendParams params{};
  params.k.to_batch = a.cache.shape[1];
  params.k.to_row = 1;
  params.k.cu_seqlens = data_of<int>(a.cu_seqlens_new);
  params.k.seqlen = divisor_of(a.cu_seqlens_new.given() ? 1 : a.rows.shape[1]);
  set_places(a, a.cache, params);
  return params;
}

/// Of `rows`, a CTA for each of their heads'.
Status launch(const CodedRowsConfig& config, const ConstTensorView& rows, CodedRowsParams params,
              const Execution& execution, const runtime::CudaDevice& device) {
  const Checked count = rows.rank == 3 ? Checked(rows.shape[0]) : Checked(rows.shape[0]) * rows.shape[1];
  const Checked blocks = count * params.cache.heads;
  if (!blocks.at_most(kMaxInt)) {
    return unsupported("{} rows of {} heads: the gpu engine takes up to {} in all", count.value(), params.cache.heads,
                       kMaxInt);
  }
  if (blocks.value() == 0) return {};
  const Result<runtime::Kernel> kernel =
      find_kernel(config, device, 0, [&] { return coded_rows_variant(config, architecture_of(device)); });
  if (!kernel.ok()) return kernel.status();
  const runtime::ContextScope context(device);
  if (!context.status().ok()) return context.status();
  params.columns = plain_rows_of(rows);
  params.by_heads = divisor_of(params.cache.heads);
  return runtime::launch(*device.driver, kernel->launched_in(context.current()),
                         runtime::row_of_blocks(blocks.value(), auxiliary::kCodedRowsThreads),
                         static_cast<runtime::CUstream>(execution.stream), params);
}

/// Places are numbers of 31 bits.
Status check_places(const ConstTensorView& cache) {
  const Checked places = Checked(cache.shape[0]) * cache.shape[1];
  if (places.at_most(kMaxInt)) return {};
  return unsupported("cache has {} rows: the gpu engine takes up to {}", places.value(), kMaxInt);
}

}  // namespace

Status encode_rows(const ConstTensorView& rows, const TensorView& cache, const RowFormat& format,
                   const Execution& execution, const runtime::CudaDevice& device) {
  if (Status status = check_places(cache); !status.ok()) return status;
  const CodedRowsConfig config{.format = stored_format(format), .element = element_of(rows.dtype)};
  CodedRowsParams params{};
  params.cache = stored_cache(cache, format);
  return launch(config, rows, params, execution, device);
}

Status decode_rows(const ConstTensorView& cache, const TensorView& rows, const RowFormat& format,
                   const Execution& execution, const runtime::CudaDevice& device) {
  if (Status status = check_places(cache); !status.ok()) return status;
  const CodedRowsConfig config{
      .format = stored_format(format), .element = element_of(rows.dtype), .transfer = RowTransfer::decode};
  CodedRowsParams params{};
  const TensorView read{
      const_cast<void*>(cache.data), cache.dtype, cache.device, cache.rank, cache.shape, cache.strides};
  params.cache = stored_cache(read, format);
  return launch(config, rows, params, execution, device);
}

Status append_rows(const AppendRowsArguments& arguments, const RowFormat& format, const Execution& execution,
                   const runtime::CudaDevice& device) {
  if (Status status = check_places(arguments.cache); !status.ok()) return status;
  if (arguments.cache_seqlens.shape[0] == 0) return {};
  const CodedRowsConfig config{
      .format = stored_format(format), .element = element_of(arguments.rows.dtype), .transfer = RowTransfer::append};
  CodedRowsParams params{};
  params.cache = stored_cache(arguments.cache, format);
  params.append = append_params(arguments);
  return launch(config, arguments.rows, params, execution, device);
}

}  // namespace strobe::gpu
