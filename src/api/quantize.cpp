// SPDX-License-Identifier: Apache-2.0
#include "strobe/quantize.h"

#include <algorithm>
#include <array>
#include <new>
#include <string_view>

#include "api/choose_engine.h"
#include "api/tensor_checks.h"
#include "call/eight_bit.h"
#include "call/limits.h"
#include "engine/registry.h"

namespace strobe {
namespace {

using api::NamedTensor;

Status check_source(const NamedTensor& tensor, const ConstTensorView& q) {
  const DType dtype = tensor.view.dtype;
  return api::first_failure(
      [&] { return api::check_layout(tensor, 4, "[batch, seqlen, heads, head_dim]"); },
      [&]() -> Status {
        if (dtype == DType::float32 || dtype == DType::float16 || dtype == DType::bfloat16) return {};
        return api::invalid("{} is {}: it must be float32, float16 or bfloat16", tensor.name, name_of(dtype));
      },
      [&] { return api::check_dtype(tensor, q.dtype, ", as q is"); },
      [&] { return api::check_device(tensor, q.device); },
      [&]() -> Status {
        const std::int64_t columns = tensor.view.shape[3];
        if (columns >= 1 && columns <= kMaxHeadDim) return {};
        return api::invalid("{} has {} columns: a head_dim must be from 1 to {}", tensor.name, columns, kMaxHeadDim);
      });
}

/// Extents of the three sources that must fit one another.
Status check_extents(const QuantizeArguments& a) {
  const auto& q = a.q.shape;
  const auto& k = a.k.shape;
  if (k[0] != q[0] || k[3] != q[3] || (k[2] == 0 ? q[2] != 0 : q[2] % k[2] != 0)) {
    return api::invalid(
        "k has shape {} and q has {}: batch and head_dim must be equal, and heads_q a multiple of heads_kv",
        api::shape_text(a.k), api::shape_text(a.q));
  }
  return api::check_shape({"v", a.v}, {k[0], k[1], k[2], a.v.shape[3]}, "[batch, seqlen_k, heads_kv, head_dim_v]");
}

Status check_output(const NamedTensor& output, DType dtype, std::initializer_list<std::int64_t> shape,
                    std::string_view layout, const Device& device) {
  return api::first_failure(
      [&] { return api::check_layout(output, static_cast<int>(shape.size()), layout); },
      [&] { return api::check_dtype(output, dtype, ""); }, [&] { return api::check_device(output, device); },
      [&] { return api::check_shape(output, shape, layout); }, [&] { return api::check_distinct_elements(output); });
}

Status check_scales(const NamedTensor& scales, ScaleUnit unit, const ConstTensorView& source) {
  const auto& shape = source.shape;
  const bool shared = unit == ScaleUnit::tensor;
  const std::int64_t count = std::max<std::int64_t>(ceil_div(shape[1], rows_per_scale(unit, shape[1])), 1);
  return check_output(scales, DType::float32, {shared ? 1 : shape[0], shared ? 1 : shape[2], count},
                      "[batch, heads, scales]", source.device);
}

Status check_outputs(const QuantizeArguments& a, const QuantizeOptions& options) {
  const auto& q = a.q.shape;
  const auto& k = a.k.shape;
  const Device& device = a.q.device;
  const DType element = options.element;
  return api::first_failure(
      [&] {
        return check_output({"q8", a.q8}, element, {q[0], q[1], q[2], q[3]}, "[batch, seqlen_q, heads_q, head_dim]",
                            device);
      },
      [&] {
        return check_output({"k8", a.k8}, element, {k[0], k[1], k[2], k[3]}, "[batch, seqlen_k, heads_kv, head_dim]",
                            device);
      },
      [&] {
        return check_output({"v8", a.v8}, element, {k[0], k[2], a.v.shape[3], round_up(k[1], kValueKeys)},
                            "[batch, heads_kv, head_dim_v, round_up(seqlen_k, 32)]", device);
      },
      [&] { return check_scales({"q_descale", a.q_descale}, options.q_scales, a.q); },
      [&] { return check_scales({"k_descale", a.k_descale}, options.k_scales, a.k); },
      [&] { return check_scales({"v_descale", a.v_descale}, options.v_scales, a.v); },
      [&]() -> Status {
        if (!options.center_k) {
          if (!a.q_shift.given()) return {};
          return api::invalid("q_shift is given, but center_k is off");
        }
        return check_output({"q_shift", a.q_shift}, DType::float32, {q[0], q[2], q[1]}, "[batch, heads_q, seqlen_q]",
                            device);
      });
}

/// Pointers, and outputs apart from one another and from the sources.
Status check_memory(const QuantizeArguments& a) {
  const std::array<NamedTensor, 10> tensors{{{"q", a.q},
                                             {"k", a.k},
                                             {"v", a.v},
                                             {"q8", a.q8},
                                             {"k8", a.k8},
                                             {"v8", a.v8},
                                             {"q_descale", a.q_descale},
                                             {"k_descale", a.k_descale},
                                             {"v_descale", a.v_descale},
                                             {"q_shift", a.q_shift}}};
  constexpr std::size_t kFirstOutput = 3;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].view.given()) continue;
    if (Status status = api::check_data(tensors[i]); !status.ok()) return status;
    for (std::size_t j = 0; i >= kFirstOutput && j < i; ++j) {
      if (!tensors[j].view.given()) continue;
      if (Status status = api::check_apart(tensors[i], tensors[j]); !status.ok()) return status;
    }
  }
  return {};
}

Status run(const QuantizeArguments& arguments, const QuantizeOptions& options, const Execution& execution) {
  if (!is_eight_bit(options.element)) {
    return api::invalid("element is {}: it must be int8 or float8_e4m3", name_of(options.element));
  }
  Status status = api::first_failure(
      [&] { return check_source({"q", arguments.q}, arguments.q); },
      [&] { return check_source({"k", arguments.k}, arguments.q); },
      [&] { return check_source({"v", arguments.v}, arguments.q); }, [&] { return check_extents(arguments); },
      [&] { return check_outputs(arguments, options); }, [&] { return api::check_threads(execution.threads); });
  if (!status.ok()) return status;
  const Result<const engine::Implementation*> chosen =
      api::choose_engine(engine::implementations(), arguments.q.device, execution.engine);
  if (!chosen.ok()) return chosen.status();
  status = check_memory(arguments);
  return status.ok() ? (*chosen)->quantize(arguments, options, execution) : status;
}

}  // namespace

Status quantize(const QuantizeArguments& arguments, const QuantizeOptions& options, const Execution& execution) {
  try {
    return run(arguments, options, execution);
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, api::kMemoryRanOut};
  }
}

}  // namespace strobe
