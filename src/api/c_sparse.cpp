// SPDX-License-Identifier: Apache-2.0
// Row formats and sparse attention of the C ABI.
#include <algorithm>
#include <cstring>

#include "api/c_errors.h"
#include "api/c_structs.h"
#include "strobe/sparse.h"
#include "strobe/strobe_sparse.h"

namespace strobe::api {
namespace {

static_assert(STROBE_ROW_FLOAT4_E2M1 == static_cast<int>(RowElement::float4_e2m1));
static_assert(STROBE_ROW_SCALE_FLOAT8_E4M3 == static_cast<int>(RowScale::float8_e4m3));
static_assert(STROBE_MAX_ROW_PARTS == kMaxRowParts);

template <class Struct>
Result<Struct> read_required(const Struct* from, std::string_view name) {
  if (from == nullptr) return invalid("arguments is null: give a {}", name);
  return read_versioned(from, name);
}

Status check_zero(std::int32_t reserved, std::string_view name) {
  if (reserved == 0) return {};
  return invalid("{}.reserved is {}: it must be 0", name, reserved);
}

/// Reads tensors that need not be given, up to the first that is not valid.
class Views {
 public:
  template <class View>
  void read(const strobe_tensor& from, const char* name, View& to) {
    if (!status_.ok()) return;
    const Result<TensorView> view = read_tensor(&from, name);
    if (view.ok()) {
      to = *view;
    } else {
      status_ = view.status();
    }
  }
  const Status& status() const { return status_; }

 private:
  Status status_;
};

/// A null pointer is no format.
Status read_format(const strobe_row_format* given, RowFormat& to) {
  if (given == nullptr) return {};
  const Result<strobe_row_format> from = read_versioned(given, "strobe_row_format");
  if (!from.ok()) return from.status();
  if (Status status = check_zero(from->reserved, "strobe_row_format"); !status.ok()) return status;
  for (std::size_t i = 0; i < to.parts.size(); ++i) {
    const strobe_row_part& part = from->parts[i];
    // What does not fit the enumerations' byte becomes a number that check_row_format() rejects.
    const auto small = [](std::int32_t x) { return static_cast<std::uint8_t>(std::clamp(x, 0, 255) == x ? x : 255); };
    to.parts[i] = {.element = static_cast<RowElement>(small(part.element)),
                   .columns = part.columns,
                   .offset = part.offset,
                   .scale = static_cast<RowScale>(small(part.scale)),
                   .scale_columns = part.scale_columns,
                   .scale_offset = part.scale_offset};
  }
  to.part_count = from->part_count;
  to.head_dim_v = from->head_dim_v;
  to.row_bytes = from->row_bytes;
  to.tail_bytes = from->tail_bytes;
  to.alignment = from->alignment;
  return {};
}

Status read_append(const strobe_append_rows_arguments* given, AppendRowsArguments& to) {
  const Result<strobe_append_rows_arguments> from = read_required(given, "strobe_append_rows_arguments");
  if (!from.ok()) return from.status();
  Views views;
  views.read(from->cache, "cache", to.cache);
  views.read(from->rows, "rows", to.rows);
  views.read(from->cache_seqlens, "cache_seqlens", to.cache_seqlens);
  views.read(from->cu_seqlens_new, "cu_seqlens_new", to.cu_seqlens_new);
  views.read(from->page_table, "page_table", to.page_table);
  views.read(from->cache_batch_idx, "cache_batch_idx", to.cache_batch_idx);
  return views.status();
}

Status read_source(const strobe_sparse_source* given, SparseSource& to) {
  if (given == nullptr) return {};
  const Result<strobe_sparse_source> from = read_versioned(given, "strobe_sparse_source");
  if (!from.ok()) return from.status();
  Views views;
  views.read(from->k, "k", to.k);
  views.read(from->v, "v", to.v);
  views.read(from->indices, "indices", to.indices);
  views.read(from->topk_length, "topk_length", to.topk_length);
  views.read(from->cu_seqlens_k, "cu_seqlens_k", to.cu_seqlens_k);
  views.read(from->page_table, "page_table", to.page_table);
  views.read(from->seqused_k, "seqused_k", to.seqused_k);
  to.block_size = from->block_size == 0 ? 1 : from->block_size;
  to.in_pool = from->in_pool != 0;
  to.causal = from->causal != 0;
  return first_failure([&] { return views.status(); }, [&] { return read_format(from->k_format, to.k_format); },
                       [&] { return read_format(from->v_format, to.v_format); });
}

Status read_forward(const strobe_sparse_arguments* given, SparseForwardArguments& to) {
  const Result<strobe_sparse_arguments> from = read_required(given, "strobe_sparse_arguments");
  if (!from.ok()) return from.status();
  Views views;
  views.read(from->q, "q", to.q);
  views.read(from->o, "o", to.o);
  views.read(from->lse, "lse", to.lse);
  views.read(from->sink, "sink", to.sink);
  views.read(from->cu_seqlens_q, "cu_seqlens_q", to.cu_seqlens_q);
  return first_failure([&] { return views.status(); }, [&] { return read_source(from->source, to.sources[0]); },
                       [&] { return read_source(from->extra, to.sources[1]); });
}

Status read_backward(const strobe_sparse_backward_arguments* given, SparseBackwardArguments& to) {
  const Result<strobe_sparse_backward_arguments> from = read_required(given, "strobe_sparse_backward_arguments");
  if (!from.ok()) return from.status();
  Views views;
  views.read(from->d_o, "d_o", to.d_o);
  views.read(from->d_lse, "d_lse", to.d_lse);
  views.read(from->dq, "dq", to.dq);
  views.read(from->dk, "dk", to.gradients[0].dk);
  views.read(from->dv, "dv", to.gradients[0].dv);
  views.read(from->extra_dk, "extra_dk", to.gradients[1].dk);
  views.read(from->extra_dv, "extra_dv", to.gradients[1].dv);
  views.read(from->d_sink, "d_sink", to.d_sink);
  return first_failure([&] { return views.status(); }, [&] { return read_forward(from->forward, to.forward); });
}

Result<SparseOptions> read_sparse_options(const strobe_sparse_options* given) {
  const Result<strobe_sparse_options> from = read_versioned(given, "strobe_sparse_options");
  if (!from.ok()) return from.status();
  if (Status status = check_zero(from->reserved, "strobe_sparse_options"); !status.ok()) return status;
  SparseOptions options;
  if (from->has_scale != 0) options.scale = from->scale;
  options.softcap = from->softcap;
  return options;
}

/// run(execution) on the struct as read.
template <class Run>
Status with_execution(const strobe_execution* given, const Run& run) {
  Result<ReadExecution> read = read_execution(given);
  if (!read.ok()) return read.status();
  if (read->parallel_for) read->execution.parallel_for = &read->parallel_for;
  if (read->allocate_workspace) read->execution.allocate_workspace = &read->allocate_workspace;
  return run(read->execution);
}

/// convert(rows, cache, format, execution) on the structs as read.
template <class Convert>
strobe_code convert_rows(const strobe_tensor* rows, const strobe_tensor* cache, const strobe_row_format* c_format,
                         const strobe_execution* execution, const Convert& convert) {
  return with_code([&]() -> Status {
    const Result<TensorView> from = read_tensor(rows, "rows");
    if (!from.ok()) return from.status();
    const Result<TensorView> to = read_tensor(cache, "cache");
    if (!to.ok()) return to.status();
    RowFormat format;
    if (Status status = read_format(c_format, format); !status.ok()) return status;
    return with_execution(execution, [&](const Execution& e) { return convert(*from, *to, format, e); });
  });
}

/// To *format, which a caller gave.
Status write_format(const RowFormat& from, strobe_row_format* format) {
  const Result<strobe_row_format> given = read_required(format, "strobe_row_format");
  if (!given.ok()) return given.status();
  if (format->struct_size < sizeof(strobe_row_format)) {
    return invalid("strobe_row_format.struct_size is {}: a format is written to {} bytes", format->struct_size,
                   sizeof(strobe_row_format));
  }
  strobe_row_format& to = *format;
  for (std::size_t i = 0; i < from.parts.size(); ++i) {
    const RowPart& part = from.parts[i];
    to.parts[i] = {static_cast<std::int32_t>(part.element), part.columns,       part.offset,
                   static_cast<std::int32_t>(part.scale),   part.scale_columns, part.scale_offset};
  }
  to.part_count = from.part_count;
  to.head_dim_v = from.head_dim_v;
  to.row_bytes = from.row_bytes;
  to.tail_bytes = from.tail_bytes;
  to.alignment = from.alignment;
  return {};
}

}  // namespace
}  // namespace strobe::api

extern "C" {

strobe_code strobe_ready_row_format(int32_t which, strobe_row_format* format) {
  using namespace strobe;
  return api::with_code([&]() -> Status {
    switch (which) {
      case STROBE_ROWS_MLA_BFLOAT16: return api::write_format(mla_bfloat16_rows(), format);
      case STROBE_ROWS_DEEPSEEK_V32: return api::write_format(deepseek_v32_rows(), format);
      case STROBE_ROWS_DEEPSEEK_V4: return api::write_format(deepseek_v4_rows(), format);
      case STROBE_ROWS_DEEPSEEK_V41: return api::write_format(deepseek_v41_rows(), format);
      case STROBE_ROWS_DEEPSEEK_V41_FOUR_BIT: return api::write_format(deepseek_v41_four_bit_rows(), format);
      default: return api::invalid("{} is {}: it must be from 0 to {}", "which", which, 4);
    }
  });
}

strobe_code strobe_eight_bit_row_format(int32_t element, int32_t columns, strobe_row_format* format) {
  using namespace strobe;
  return api::with_code([&]() -> Status {
    if (element != STROBE_ROW_FLOAT8_E4M3 && element != STROBE_ROW_INT8) {
      return api::invalid("element is {}: it must be STROBE_ROW_FLOAT8_E4M3 or STROBE_ROW_INT8", element);
    }
    if (columns < 1 || columns > kMaxRowColumns) {
      return api::invalid("columns is {}: it must be from 1 to {}", columns, kMaxRowColumns);
    }
    return api::write_format(eight_bit_rows(static_cast<RowElement>(element), columns), format);
  });
}

strobe_code strobe_encode_rows(const strobe_tensor* rows, const strobe_tensor* cache, const strobe_row_format* format,
                               const strobe_execution* execution) {
  using namespace strobe;
  return api::convert_rows(rows, cache, format, execution,
                           [](const TensorView& from, const TensorView& to, const RowFormat& f, const Execution& e) {
                             return encode_rows(from, to, f, e);
                           });
}

strobe_code strobe_decode_rows(const strobe_tensor* cache, const strobe_tensor* rows, const strobe_row_format* format,
                               const strobe_execution* execution) {
  using namespace strobe;
  return api::convert_rows(rows, cache, format, execution,
                           [](const TensorView& to, const TensorView& from, const RowFormat& f, const Execution& e) {
                             return decode_rows(from, to, f, e);
                           });
}

strobe_code strobe_append_rows(const strobe_append_rows_arguments* c_arguments, const strobe_row_format* c_format,
                               const strobe_execution* execution) {
  using namespace strobe;
  return api::with_code([&]() -> Status {
    AppendRowsArguments arguments;
    RowFormat format;
    Status status = api::first_failure([&] { return api::read_append(c_arguments, arguments); },
                                       [&] { return api::read_format(c_format, format); });
    if (!status.ok()) return status;
    return api::with_execution(execution, [&](const Execution& e) { return append_rows(arguments, format, e); });
  });
}

strobe_code strobe_sparse_forward(const strobe_sparse_arguments* c_arguments, const strobe_sparse_options* c_options,
                                  const strobe_execution* execution) {
  using namespace strobe;
  return api::with_code([&]() -> Status {
    const Result<SparseOptions> options = api::read_sparse_options(c_options);
    if (!options.ok()) return options.status();
    SparseForwardArguments arguments;
    if (Status status = api::read_forward(c_arguments, arguments); !status.ok()) return status;
    return api::with_execution(execution, [&](const Execution& e) { return sparse_forward(arguments, *options, e); });
  });
}

strobe_code strobe_explain_sparse_forward(const strobe_sparse_arguments* c_arguments,
                                          const strobe_sparse_options* c_options, const strobe_execution* execution,
                                          char* text, size_t size, size_t* needed) {
  using namespace strobe;
  return api::with_code([&]() -> Status {
    if (text == nullptr && size != 0) return api::invalid("text is null and size is {}: it must be 0 then", size);
    const Result<SparseOptions> options = api::read_sparse_options(c_options);
    if (!options.ok()) return options.status();
    SparseForwardArguments arguments;
    if (Status status = api::read_forward(c_arguments, arguments); !status.ok()) return status;
    return api::with_execution(execution, [&](const Execution& e) -> Status {
      const Result<std::string> explained = explain_sparse_forward(arguments, *options, e);
      if (!explained.ok()) return explained.status();
      if (needed != nullptr) *needed = explained->size() + 1;
      if (size != 0) text[explained->copy(text, size - 1)] = '\0';
      return {};
    });
  });
}

strobe_code strobe_sparse_backward(const strobe_sparse_backward_arguments* c_arguments,
                                   const strobe_sparse_options* c_options, const strobe_execution* execution) {
  using namespace strobe;
  return api::with_code([&]() -> Status {
    const Result<SparseOptions> options = api::read_sparse_options(c_options);
    if (!options.ok()) return options.status();
    SparseBackwardArguments arguments;
    if (Status status = api::read_backward(c_arguments, arguments); !status.ok()) return status;
    return api::with_execution(execution, [&](const Execution& e) { return sparse_backward(arguments, *options, e); });
  });
}

}  // extern "C"
