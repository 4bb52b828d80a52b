// SPDX-License-Identifier: Apache-2.0
#include "api/append.h"
#include "api/choose_engine.h"
#include "api/device_values.h"
#include "api/guarded.h"
#include "api/row_format.h"
#include "call/cache_rows.h"

namespace strobe {
namespace {

using api::invalid;
using api::NamedTensor;

/// An optional int32 tensor.
Status check_append_integers(const NamedTensor& tensor, const Device& device, std::initializer_list<std::int64_t> shape,
                             std::string_view layout) {
  if (!tensor.view.given()) return {};
  return api::first_failure([&] { return api::check_layout(tensor, static_cast<int>(shape.size()), layout); },
                            [&] { return api::check_dtype(tensor, DType::int32, ""); },
                            [&] { return api::check_device(tensor, device); },
                            [&] { return api::check_shape(tensor, shape, layout); });
}

Status check_appended_rows(const AppendRowsArguments& a, const RowFormat& format) {
  const bool packed = a.cu_seqlens_new.given();
  const std::string_view layout = packed ? "[total_new, heads_kv, columns]" : "[batch, seqlen_new, heads_kv, columns]";
  const NamedTensor rows{"rows", a.rows};
  const DType dtype = a.rows.dtype;
  if (Status status = api::check_layout(rows, packed ? 3 : 4, layout); !status.ok()) return status;
  if (dtype != DType::float32 && dtype != DType::float16 && dtype != DType::bfloat16) {
    return invalid("{} is {}: it must be float32, float16 or bfloat16", rows.name, name_of(dtype));
  }
  const std::int64_t batch = a.cache_seqlens.shape[0];
  const auto& s = a.rows.shape;
  return api::first_failure([&] { return api::check_device(rows, a.cache.device); },
                            [&] {
                              return packed ? api::check_shape(rows, {s[0], a.cache.shape[2], format.columns()}, layout)
                                            : api::check_shape(rows, {batch, s[1], a.cache.shape[2], format.columns()},
                                                               layout);
                            });
}

Status check_append_rows(const AppendRowsArguments& a, const RowFormat& format) {
  const NamedTensor cache{"cache", a.cache};
  const NamedTensor lengths{"cache_seqlens", a.cache_seqlens};
  const Device& device = a.cache.device;
  Status status = api::first_failure(
      [&] { return api::check_named_format("format", format); },
      [&] { return api::check_layout(cache, 4, "[batch_cache or num_pages, rows, heads_kv, row_bytes]"); },
      [&] { return api::check_formatted_cache(cache, format); }, [&] { return api::check_distinct_elements(cache); },
      [&] { return api::check_layout(lengths, 1, "[batch]"); });
  if (!status.ok()) return status;
  const std::int64_t batch = a.cache_seqlens.shape[0];
  status = api::first_failure(
      [&] { return check_append_integers(lengths, device, {batch}, "[batch]"); },
      [&] { return check_append_integers({"cu_seqlens_new", a.cu_seqlens_new}, device, {batch + 1}, "[batch + 1]"); },
      [&] { return check_append_integers({"cache_batch_idx", a.cache_batch_idx}, device, {batch}, "[batch]"); },
      [&] {
        return check_append_integers({"page_table", a.page_table}, device, {batch, a.page_table.shape[1]},
                                     "[batch, max_pages]");
      },
      [&] { return check_appended_rows(a, format); });
  if (!status.ok()) return status;
  if (a.page_table.given() && a.cache_batch_idx.given()) {
    return invalid("cache_batch_idx is given with page_table: the rows of page_table say as much");
  }
  if (a.page_table.given() || a.cache_batch_idx.given() || a.cache.shape[0] == batch) return {};
  return invalid("cache has batch {} and cache_seqlens has {}: they must be equal without cache_batch_idx",
                 a.cache.shape[0], batch);
}

Status check_append_memory(const AppendRowsArguments& a) {
  const NamedTensor cache{"cache", a.cache};
  if (Status status = api::check_data(cache); !status.ok()) return status;
  for (const NamedTensor& input :
       {NamedTensor{"rows", a.rows}, NamedTensor{"cache_seqlens", a.cache_seqlens},
        NamedTensor{"cu_seqlens_new", a.cu_seqlens_new}, NamedTensor{"page_table", a.page_table},
        NamedTensor{"cache_batch_idx", a.cache_batch_idx}}) {
    if (!input.view.given()) continue;
    Status status =
        api::first_failure([&] { return api::check_data(input); }, [&] { return api::check_apart(cache, input); });
    if (!status.ok()) return status;
  }
  return {};
}

Status run_append_rows(const AppendRowsArguments& arguments, const RowFormat& format, const Execution& execution) {
  const Result<const engine::Implementation*> chosen =
      api::engine_for(check_append_rows(arguments, format), arguments.cache.device, execution);
  if (!chosen.ok()) return chosen.status();
  Status status = check_append_memory(arguments);
  if (status.ok()) {
    const AppendArguments as_append = to_append(arguments);
    status = arguments.cache.device.type == DeviceType::cpu ? api::check_append_values(as_append)
                                                            : api::check_device_values(as_append, execution);
  }
  return status.ok() ? (*chosen)->append_rows(arguments, format, execution) : status;
}

}  // namespace

Status append_rows(const AppendRowsArguments& arguments, const RowFormat& format, const Execution& execution) {
  return api::guarded([&] { return run_append_rows(arguments, format, execution); });
}

}  // namespace strobe
