// SPDX-License-Identifier: Apache-2.0
#include "api/append.h"

#include <fmt/format.h>

#include <string_view>

#include "api/choose_engine.h"
#include "api/device_values.h"
#include "api/guarded.h"
#include "api/tensor_checks.h"
#include "api/tensor_memory.h"
#include "call/eight_bit.h"
#include "call/limits.h"

namespace strobe {
namespace {

using api::NamedTensor;

Status check_append_float(const NamedTensor& tensor) {
  const DType dtype = tensor.view.dtype;
  if (dtype == DType::float32 || dtype == DType::float16 || dtype == DType::bfloat16) return {};
  return api::invalid("{} is {}: it must be float32, float16 or bfloat16", tensor.name, name_of(dtype));
}

/// The checks of an append's shapes, each assuming the ones before.
class AppendShapes {
 public:
  explicit AppendShapes(const AppendArguments& a) : a_(a) {}

  Status check() const {
    return api::first_failure([&] { return check_cache(); }, [&] { return check_indices(); },
                              [&] { return check_new(); }, [&] { return check_rotation(); },
                              [&] { return check_queries(); }, [&] { return check_scales(); });
  }

 private:
  const Device& device() const { return a_.k_cache.device; }
  std::int64_t batch() const { return a_.cache_seqlens.shape[0]; }
  std::int64_t heads_kv() const { return a_.k_cache.shape[2]; }
  std::int64_t head_dim() const { return a_.k_cache.shape[3]; }

  Status check_cache() const {
    const std::string_view layout = a_.page_table.given() ? "[num_pages, page_size, heads_kv, head_dim]"
                                                          : "[batch_cache, seqlen, heads_kv, head_dim]";
    const NamedTensor k{"k_cache", a_.k_cache};
    const NamedTensor v{"v_cache", a_.v_cache};
    return api::first_failure(
        [&] { return api::check_layout(k, 4, layout); }, [&] { return api::check_layout(v, 4, layout); },
        [&] { return is_eight_bit(a_.k_cache.dtype) ? Status() : check_append_float(k); },
        [&] { return api::check_dtype(v, a_.k_cache.dtype, ", as k_cache is"); },
        [&] { return api::check_device(v, device()); },
        [&] {
          const auto& s = a_.k_cache.shape;
          return api::check_shape(v, {s[0], s[1], s[2], a_.v_cache.shape[3]}, layout);
        },
        [&] { return check_columns(k, kMaxHeadDim); }, [&] { return check_columns(v, kMaxHeadDimV); },
        [&] { return api::check_distinct_elements(k); }, [&] { return api::check_distinct_elements(v); });
  }

  static Status check_columns(const NamedTensor& cache, std::int64_t most) {
    const std::int64_t columns = cache.view.shape[3];
    if (columns >= 1 && columns <= most) return {};
    return api::invalid("{} has {} columns: a head_dim must be from 1 to {}", cache.name, columns, most);
  }

  /// An optional int32 tensor.
  Status check_integers(const NamedTensor& tensor, std::initializer_list<std::int64_t> shape,
                        std::string_view layout) const {
    if (!tensor.view.given()) return {};
    return api::first_failure([&] { return api::check_layout(tensor, static_cast<int>(shape.size()), layout); },
                              [&] { return api::check_dtype(tensor, DType::int32, ""); },
                              [&] { return api::check_device(tensor, device()); },
                              [&] { return api::check_shape(tensor, shape, layout); });
  }

  Status check_indices() const {
    const NamedTensor lengths{"cache_seqlens", a_.cache_seqlens};
    return api::first_failure(
        [&] { return api::check_layout(lengths, 1, "[batch]"); },
        [&] { return check_integers(lengths, {batch()}, "[batch]"); },
        [&] { return check_integers({"leftpad_k", a_.leftpad_k}, {batch()}, "[batch]"); },
        [&] { return check_integers({"cache_batch_idx", a_.cache_batch_idx}, {batch()}, "[batch]"); },
        [&] { return check_integers({"cu_seqlens_new", a_.cu_seqlens_new}, {batch() + 1}, "[batch + 1]"); },
        [&] { return check_integers({"cu_seqlens_q", a_.cu_seqlens_q}, {batch() + 1}, "[batch + 1]"); },
        [&]() -> Status {
          if (!a_.page_table.given()) return {};
          if (a_.cache_batch_idx.given()) {
            return api::invalid("cache_batch_idx is given with page_table: the rows of page_table say as much");
          }
          return check_integers({"page_table", a_.page_table}, {batch(), a_.page_table.shape[1]}, "[batch, max_pages]");
        },
        [&]() -> Status {
          if (a_.page_table.given() || a_.cache_batch_idx.given() || a_.k_cache.shape[0] == batch()) return {};
          return api::invalid(
              "k_cache has batch {} and cache_seqlens has {}: they must be equal without cache_batch_idx",
              a_.k_cache.shape[0], batch());
        });
  }

  /// Rows of the call's sequences, batched or packed, with the wanted heads and columns.
  Status check_rows(const NamedTensor& rows, bool packed, std::int64_t heads, std::int64_t columns,
                    std::string_view layout) const {
    return api::first_failure([&] { return api::check_layout(rows, packed ? 3 : 4, layout); },
                              [&] { return check_append_float(rows); },
                              [&] { return api::check_device(rows, device()); },
                              [&] {
                                const auto& s = rows.view.shape;
                                return packed ? api::check_shape(rows, {s[0], heads, columns}, layout)
                                              : api::check_shape(rows, {batch(), s[1], heads, columns}, layout);
                              });
  }

  Status check_new() const {
    const bool packed = a_.cu_seqlens_new.given();
    const std::string_view layout =
        packed ? "[total_new, heads_kv, head_dim]" : "[batch, seqlen_new, heads_kv, head_dim]";
    const NamedTensor k{"k_new", a_.k_new};
    const NamedTensor v{"v_new", a_.v_new};
    return api::first_failure([&] { return check_rows(k, packed, heads_kv(), head_dim(), layout); },
                              [&] { return check_rows(v, packed, heads_kv(), a_.v_cache.shape[3], layout); },
                              [&] { return api::check_dtype(v, a_.k_new.dtype, ", as k_new is"); },
                              [&]() -> Status {
                                const std::size_t axis = packed ? 0 : 1;
                                if (a_.v_new.shape[axis] == a_.k_new.shape[axis]) return {};
                                return api::invalid("v_new has {} rows and k_new {}: they must be equal",
                                                    a_.v_new.shape[axis], a_.k_new.shape[axis]);
                              });
  }

  /// A table of angles.
  Status check_table(const NamedTensor& table) const {
    return api::first_failure([&] { return api::check_layout(table, 2, "[seqlen_ro, rotary_dim / 2]"); },
                              [&] { return check_append_float(table); },
                              [&] { return api::check_device(table, device()); },
                              [&] {
                                const auto& s = a_.cos.shape;
                                return api::check_shape(table, {s[0], s[1]}, "[seqlen_ro, rotary_dim / 2]");
                              });
  }

  Status check_rotation() const {
    if (!a_.cos.given() && !a_.sin.given()) {
      if (a_.q.given()) return api::invalid("q is given without cos and sin: an append does nothing else with q");
      if (a_.positions.given()) return api::invalid("positions is given without cos and sin");
      return {};
    }
    const bool packed = a_.cu_seqlens_new.given();
    return api::first_failure(
        [&] { return check_table({"cos", a_.cos}); }, [&] { return check_table({"sin", a_.sin}); },
        [&]() -> Status {
          const std::int64_t pairs = a_.cos.shape[1];
          if (pairs >= 1 && 2 * pairs <= head_dim()) return {};
          return api::invalid("cos has {} columns: twice as many must be from 2 to head_dim, which is {}", pairs,
                              head_dim());
        },
        [&] {
          return packed
                     ? check_integers({"positions", a_.positions}, {a_.k_new.shape[0]}, "[total_new]")
                     : check_integers({"positions", a_.positions}, {batch(), a_.k_new.shape[1]}, "[batch, seqlen_new]");
        });
  }

  Status check_queries() const {
    if (!a_.q.given()) {
      if (a_.q_out.given()) return api::invalid("q_out is given without q");
      if (a_.cu_seqlens_q.given()) return api::invalid("cu_seqlens_q is given without q");
      if (a_.positions_q.given()) return api::invalid("positions_q is given without q");
      return {};
    }
    const bool packed = a_.cu_seqlens_q.given();
    const std::string_view layout = packed ? "[total_q, heads_q, head_dim]" : "[batch, seqlen_q, heads_q, head_dim]";
    const NamedTensor out{"q_out", a_.q_out};
    const auto& s = a_.q.shape;
    return api::first_failure(
        [&] { return api::check_layout({"q", a_.q}, packed ? 3 : 4, layout); },
        [&] { return check_rows({"q", a_.q}, packed, s[packed ? 1 : 2], head_dim(), layout); },
        [&] { return api::check_dtype({"q", a_.q}, a_.k_new.dtype, ", as k_new is"); },
        [&] { return check_rows(out, packed, s[packed ? 1 : 2], head_dim(), layout); },
        [&]() -> Status {
          const std::size_t axis = packed ? 0 : 1;
          if (a_.q_out.shape[axis] == s[axis]) return {};
          return api::invalid("q_out has {} rows and q {}: they must be equal", a_.q_out.shape[axis], s[axis]);
        },
        [&] { return api::check_dtype(out, a_.k_new.dtype, ", as k_new is"); },
        [&] { return api::check_distinct_elements(out); },
        [&] {
          return packed ? check_integers({"positions_q", a_.positions_q}, {s[0]}, "[total_q]")
                        : check_integers({"positions_q", a_.positions_q}, {batch(), s[1]}, "[batch, seqlen_q]");
        });
  }

  /// Scales of heads, which are read, or of rows, which are written, and only of an 8-bit cache.
  Status check_scales() const {
    const NamedTensor heads[] = {{"k_descale", a_.k_descale}, {"v_descale", a_.v_descale}};
    const NamedTensor rows[] = {{"k_row_descale", a_.k_row_descale}, {"v_row_descale", a_.v_row_descale}};
    const bool by_rows = rows[0].view.given() || rows[1].view.given();
    if (!is_eight_bit(a_.k_cache.dtype) || by_rows) {
      for (const NamedTensor& scales : heads) {
        if (Status status = check_no_scales(scales, by_rows); !status.ok()) return status;
      }
    }
    if (!is_eight_bit(a_.k_cache.dtype)) {
      return api::first_failure([&] { return check_no_scales(rows[0], false); },
                                [&] { return check_no_scales(rows[1], false); });
    }
    return api::first_failure([&] { return by_rows ? check_row_scales(rows[0]) : check_head_scales(heads[0]); },
                              [&] { return by_rows ? check_row_scales(rows[1]) : check_head_scales(heads[1]); });
  }

  Status check_no_scales(const NamedTensor& scales, bool by_rows) const {
    if (!scales.view.given()) return {};
    if (!is_eight_bit(a_.k_cache.dtype)) {
      return api::invalid("{} is given, but k_cache is {}: scales belong to caches of int8 and float8_e4m3",
                          scales.name, name_of(a_.k_cache.dtype));
    }
    if (!by_rows) return {};
    return api::invalid(
        "{} is given with scales of rows: give k_descale and v_descale, or k_row_descale and v_row_descale",
        scales.name);
  }

  Status check_head_scales(const NamedTensor& scales) const {
    constexpr std::string_view kLayout = "[batch or 1, heads_kv or 1, 1]";
    return api::first_failure(
        [&] { return api::check_layout(scales, 3, kLayout); },
        [&] { return api::check_dtype(scales, DType::float32, ""); },
        [&] { return api::check_device(scales, device()); },
        [&]() -> Status {
          if (scales.view.shape[2] == 1) return {};
          return api::invalid(
              "{} has shape {}: an append takes {}, or writes a scale for each row to k_row_descale and v_row_descale",
              scales.name, api::shape_text(scales.view), kLayout);
        },
        [&] {
          const auto& s = scales.view.shape;
          return api::check_shape(scales, {s[0] == 1 ? 1 : batch(), s[1] == 1 ? 1 : heads_kv(), 1}, kLayout);
        });
  }

  Status check_row_scales(const NamedTensor& scales) const {
    const std::string_view layout =
        a_.page_table.given() ? "[num_pages, heads_kv, page_size]" : "[batch_cache, heads_kv, seqlen]";
    return api::first_failure([&] { return api::check_layout(scales, 3, layout); },
                              [&] { return api::check_dtype(scales, DType::float32, ""); },
                              [&] { return api::check_device(scales, device()); },
                              [&] {
                                const auto& s = a_.k_cache.shape;
                                return api::check_shape(scales, {s[0], heads_kv(), s[1]}, layout);
                              },
                              [&] { return api::check_distinct_elements(scales); });
  }

  const AppendArguments& a_;
};

Status run_append(const AppendArguments& arguments, const Execution& execution) {
  const Result<const engine::Implementation*> chosen =
      api::engine_for(AppendShapes(arguments).check(), arguments.k_cache.device, execution);
  if (!chosen.ok()) return chosen.status();
  Status status = api::check_tensor_memory(arguments);
  if (status.ok()) {
    const bool on_cpu = arguments.k_cache.device.type == DeviceType::cpu;
    status = on_cpu ? api::check_append_values(arguments) : api::check_device_values(arguments, execution);
  }
  return status.ok() ? (*chosen)->append(arguments, execution) : status;
}

}  // namespace

Status append(const AppendArguments& arguments, const Execution& execution) {
  return api::guarded([&] { return run_append(arguments, execution); });
}

}  // namespace strobe
