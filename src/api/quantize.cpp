// SPDX-License-Identifier: Apache-2.0
#include "strobe/quantize.h"

#include <algorithm>
#include <string_view>

#include "api/choose_engine.h"
#include "api/guarded.h"
#include "api/problem.h"
#include "api/tensor_checks.h"
#include "api/tensor_memory.h"
#include "call/eight_bit.h"
#include "call/limits.h"
#include "call/tensors.h"

namespace strobe {
namespace {

using api::NamedTensor;

/// Which sequences there are; shapes alone.
Status check_sequences(const Sequences& s, const Device& device) {
  Status all_rows = check_each_tensor(s, [](const CallTensor& tensor, const ConstTensorView& view) -> Status {
    if (is_cumulative(tensor) || !view.given()) return {};
    return api::invalid("{} is given: quantize() takes all rows of its sequences", tensor.name);
  });
  if (!all_rows.ok()) return all_rows;
  if (s.max_seqlen_q < -1)
    return api::invalid("max_seqlen_q is {}: it must be 0 or more, or -1 for unknown", s.max_seqlen_q);
  if (s.max_seqlen_k < -1)
    return api::invalid("max_seqlen_k is {}: it must be 0 or more, or -1 for unknown", s.max_seqlen_k);
  for (const NamedTensor& lengths :
       {NamedTensor{"cu_seqlens_q", s.cu_seqlens_q}, NamedTensor{"cu_seqlens_k", s.cu_seqlens_k}}) {
    if (!lengths.view.given()) continue;
    Status status = api::first_failure([&] { return api::check_layout(lengths, 1, "[batch + 1]"); },
                                       [&] { return api::check_dtype(lengths, DType::int32, ""); },
                                       [&] { return api::check_device(lengths, device); });
    if (!status.ok()) return status;
    if (lengths.view.shape[0] < 1) return api::invalid("{} has shape [0]: it must be [batch + 1]", lengths.name);
  }
  return {};
}

Status check_source(const NamedTensor& tensor, const ConstTensorView& q, bool packed,
                    std::int64_t most_columns = kMaxHeadDim) {
  const DType dtype = tensor.view.dtype;
  const int rank = packed ? 3 : 4;
  return api::first_failure(
      [&] {
        return api::check_layout(tensor, rank,
                                 packed ? "[total, heads, head_dim]" : "[batch, seqlen, heads, head_dim]");
      },
      [&]() -> Status {
        if (dtype == DType::float32 || dtype == DType::float16 || dtype == DType::bfloat16) return {};
        return api::invalid("{} is {}: it must be float32, float16 or bfloat16", tensor.name, name_of(dtype));
      },
      [&] { return api::check_dtype(tensor, q.dtype, ", as q is"); },
      [&] { return api::check_device(tensor, q.device); },
      [&]() -> Status {
        const std::int64_t columns = tensor.view.shape[static_cast<std::size_t>(rank - 1)];
        if (columns >= 1 && columns <= most_columns) return {};
        return api::invalid("{} has {} columns: a head_dim must be from 1 to {}", tensor.name, columns, most_columns);
      });
}

Status check_sources(const QuantizeArguments& a) {
  const bool packed_q = a.sequences.cu_seqlens_q.given();
  const bool packed_k = a.sequences.cu_seqlens_k.given();
  return api::first_failure([&] { return check_source({"q", a.q}, a.q, packed_q); },
                            [&] { return check_source({"k", a.k}, a.q, packed_k); },
                            [&] { return check_source({"v", a.v}, a.q, packed_k, kMaxHeadDimV); },
                            [&] { return check_sequences(a.sequences, a.q.device); });
}

/// Extents of the three sources that must fit one another.
Status check_extents(const QuantizeArguments& a) {
  const QuantizedSide q = queries_of(a);
  const QuantizedSide k = keys_of(a);
  if ((q.packed || k.packed) && q.batch != k.batch) {
    return api::invalid("q has batch {} and k has batch {}: they must be equal", q.batch, k.batch);
  }
  if (k.batch != q.batch || k.columns != q.columns || (k.heads == 0 ? q.heads != 0 : q.heads % k.heads != 0)) {
    return api::invalid(
        "k has shape {} and q has {}: batch and head_dim must be equal, and heads_q a multiple of heads_kv",
        api::shape_text(a.k), api::shape_text(a.q));
  }
  if (k.packed)
    return api::check_shape({"v", a.v}, {k.total, k.heads, a.v.shape[2]}, "[total_k, heads_kv, head_dim_v]");
  return api::check_shape({"v", a.v}, {k.batch, k.seqlen, k.heads, a.v.shape[3]},
                          "[batch, seqlen_k, heads_kv, head_dim_v]");
}

Status check_output(const NamedTensor& output, DType dtype, std::initializer_list<std::int64_t> shape,
                    std::string_view layout, const Device& device) {
  return api::first_failure(
      [&] { return api::check_layout(output, static_cast<int>(shape.size()), layout); },
      [&] { return api::check_dtype(output, dtype, ""); }, [&] { return api::check_device(output, device); },
      [&] { return api::check_shape(output, shape, layout); }, [&] { return api::check_distinct_elements(output); });
}

/// q8 or k8.
Status check_rows(const NamedTensor& output, DType dtype, const QuantizedSide& side, const Device& device) {
  if (side.packed) {
    return check_output(output, dtype, {side.total, side.heads, side.columns}, "[total, heads, head_dim]", device);
  }
  return check_output(output, dtype, {side.batch, side.seqlen, side.heads, side.columns},
                      "[batch, seqlen, heads, head_dim]", device);
}

Status check_values_output(const QuantizeArguments& a, DType dtype, const QuantizedSide& k) {
  const NamedTensor v8{"v8", a.v8};
  if (k.packed) {
    return check_output(v8, dtype, {k.heads, a.v.shape[2], k.value_columns()},
                        "[heads_kv, head_dim_v, 32 * (total_k / 32 + batch)]", a.q.device);
  }
  return check_output(v8, dtype, {k.batch, k.heads, a.v.shape[3], k.value_columns()},
                      "[batch, heads_kv, head_dim_v, round_up(seqlen_k, 32)]", a.q.device);
}

Status check_scales(const NamedTensor& scales, ScaleUnit unit, const QuantizedSide& side, const Device& device) {
  const bool shared = unit == ScaleUnit::tensor;
  const std::int64_t count = std::max<std::int64_t>(ceil_div(side.seqlen, rows_per_scale(unit, side.seqlen)), 1);
  return check_output(scales, DType::float32, {shared ? 1 : side.batch, shared ? 1 : side.heads, count},
                      "[batch, heads, scales]", device);
}

Status check_outputs(const QuantizeArguments& a, const QuantizeOptions& options) {
  const QuantizedSide q = queries_of(a);
  const QuantizedSide k = keys_of(a);
  const Device& device = a.q.device;
  const DType element = options.element;
  return api::first_failure([&] { return check_rows({"q8", a.q8}, element, q, device); },
                            [&] { return check_rows({"k8", a.k8}, element, k, device); },
                            [&] { return check_values_output(a, element, k); },
                            [&] { return check_scales({"q_descale", a.q_descale}, options.q_scales, q, device); },
                            [&] { return check_scales({"k_descale", a.k_descale}, options.k_scales, k, device); },
                            [&] { return check_scales({"v_descale", a.v_descale}, options.v_scales, k, device); },
                            [&]() -> Status {
                              if (!options.center_k) {
                                if (!a.q_shift.given()) return {};
                                return api::invalid("q_shift is given, but center_k is off");
                              }
                              return check_output({"q_shift", a.q_shift}, DType::float32, {q.batch, q.heads, q.seqlen},
                                                  "[batch, heads_q, seqlen_q]", device);
                            });
}

/// Lengths in host memory.
Status check_lengths(const QuantizeArguments& a) {
  if (a.q.device.type != DeviceType::cpu) return {};
  const QuantizedSide q = queries_of(a);
  const QuantizedSide k = keys_of(a);
  AttentionProblem problem;
  problem.batch = q.batch;
  problem.seqlen_q = q.seqlen;
  problem.seqlen_k = k.seqlen;
  problem.total_q = q.total;
  problem.total_k = k.total;
  ForwardArguments lengths;
  lengths.sequences = a.sequences;
  return api::check_values(problem, lengths);
}

Status run(const QuantizeArguments& arguments, const QuantizeOptions& options, const Execution& execution) {
  if (!is_eight_bit(options.element)) {
    return api::invalid("element is {}: it must be int8 or float8_e4m3", name_of(options.element));
  }
  Status status = api::first_failure([&] { return check_sources(arguments); }, [&] { return check_extents(arguments); },
                                     [&] { return check_outputs(arguments, options); });
  const Result<const engine::Implementation*> chosen = api::engine_for(status, arguments.q.device, execution);
  if (!chosen.ok()) return chosen.status();
  status =
      api::first_failure([&] { return api::check_tensor_memory(arguments); }, [&] { return check_lengths(arguments); });
  return status.ok() ? (*chosen)->quantize(arguments, options, execution) : status;
}

}  // namespace

Status quantize(const QuantizeArguments& arguments, const QuantizeOptions& options, const Execution& execution) {
  return api::guarded([&] { return run(arguments, options, execution); });
}

}  // namespace strobe
