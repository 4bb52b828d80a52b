// SPDX-License-Identifier: Apache-2.0
// A JVP's problem: that of the forward with the same inputs. Tangents look like their tensors.
#include <fmt/ranges.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "api/problem.h"
#include "api/tensor_checks.h"
#include "call/eight_bit.h"

namespace strobe::api {
namespace {

Status check_no_eight_bit(const NamedTensor& tensor) {
  if (!is_eight_bit(tensor.view.dtype)) return {};
  return unsupported("{} is {}: no engine has the JVP of 8-bit inputs", tensor.name, name_of(tensor.view.dtype));
}

/// o as q and v have it: row-major and without memory.
TensorView output_like(const ConstTensorView& q, const ConstTensorView& v) {
  TensorView o{.dtype = q.dtype, .device = q.device, .rank = q.rank, .shape = q.shape};
  if (q.rank < 1 || q.rank > kMaxRank || v.rank < 1 || v.rank > kMaxRank)
    return o;  // the forward's checks reject q or v
  o.shape[static_cast<std::size_t>(q.rank - 1)] = v.shape[static_cast<std::size_t>(v.rank - 1)];
  std::uint64_t stride = 1;  // unsigned: the forward's checks report extents whose product overflows
  for (auto axis = static_cast<std::size_t>(q.rank); axis-- > 0;) {
    o.strides[axis] = static_cast<std::int64_t>(stride);
    stride *= static_cast<std::uint64_t>(o.shape[axis]);
  }
  return o;
}

/// lse of checked queries, likewise.
TensorView lse_like(const ConstTensorView& q, bool packed) {
  const auto& s = q.shape;
  if (packed) return {.device = q.device, .rank = 2, .shape = {s[1], s[0]}, .strides = {s[0], 1}};
  return {.device = q.device, .rank = 3, .shape = {s[0], s[2], s[1]}, .strides = {s[2] * s[1], s[1], 1}};
}

/// Shape, dtype and device of `like`, a tensor [layout].
Status check_like(const NamedTensor& tensor, const ConstTensorView& like, std::string_view layout) {
  return first_failure([&] { return check_layout(tensor, like.rank, layout); },
                       [&] { return check_dtype(tensor, like.dtype, ""); },
                       [&] { return check_device(tensor, like.device); },
                       [&]() -> Status {
                         if (tensor.view.shape == like.shape) return {};
                         return invalid("{} has shape {}: it must be [{}] {}", tensor.name, shape_text(tensor.view),
                                        fmt::join(like.shape.begin(), like.shape.begin() + like.rank, ", "), layout);
                       });
}

Status check_tangents(const JvpArguments& a) {
  struct Tangent {
    NamedTensor tensor;
    const ConstTensorView& like;
    std::string_view layout;
  };
  for (const auto& [tensor, like, layout] :
       {Tangent{{"q_tangent", a.q_tangent}, a.q, "as q"}, Tangent{{"k_tangent", a.k_tangent}, a.k, "as k"},
        Tangent{{"v_tangent", a.v_tangent}, a.v, "as v"}}) {
    if (!tensor.view.given()) continue;
    if (Status status = check_like(tensor, like, layout); !status.ok()) return status;
  }
  return {};
}

Status check_outputs(const JvpArguments& a, const ConstTensorView& o) {
  const bool packed = a.sequences.cu_seqlens_q.given();
  const ConstTensorView lse = lse_like(a.q, packed);
  const std::string_view o_layout =
      packed ? "[total_q, heads_q, head_dim_v]" : "[batch, seqlen_q, heads_q, head_dim_v]";
  const std::string_view lse_layout = packed ? "[heads_q, total_q]" : "[batch, heads_q, seqlen_q]";
  const auto check = [](const NamedTensor& output, const ConstTensorView& like, std::string_view layout) {
    Status status = check_like(output, like, layout);
    return status.ok() ? check_distinct_elements(output) : status;
  };
  const auto check_optional = [&](const NamedTensor& output, const ConstTensorView& like, std::string_view layout) {
    return output.view.given() ? check(output, like, layout) : Status();
  };
  return first_failure([&] { return check_optional({"o", a.o}, o, o_layout); },
                       [&] { return check_optional({"lse", a.lse}, lse, lse_layout); },
                       [&] { return check({"o_tangent", a.o_tangent}, o, o_layout); },
                       [&] { return check_optional({"lse_tangent", a.lse_tangent}, lse, lse_layout); });
}

}  // namespace

Result<AttentionProblem> make_problem(const JvpArguments& a, const AttentionOptions& options) {
  if (a.modifiers.function != nullptr) {
    return unsupported("modifiers.function is given: no engine has the JVP of a score that a text says");
  }
  if (options.normalize != Normalization::softmax) {
    return unsupported("normalize is none: no engine has the JVP of scores that are not normalized");
  }
  Status status =
      first_failure([&] { return check_no_eight_bit({"q", a.q}); }, [&] { return check_no_eight_bit({"k", a.k}); },
                    [&] { return check_no_eight_bit({"v", a.v}); }, [&] { return check_no_cache(a.sequences, "JVP"); });
  if (!status.ok()) return status;
  const TensorView o = output_like(a.q, a.v);
  Result<AttentionProblem> problem = make_problem(
      ForwardArguments{.q = a.q, .k = a.k, .v = a.v, .o = o, .sequences = a.sequences, .modifiers = a.modifiers},
      options);
  if (!problem.ok()) return problem;
  status = check_tangents(a);
  if (status.ok()) status = check_outputs(a, o);
  if (!status.ok()) return status;
  problem->pass = Pass::jvp;
  problem->wants_lse = a.lse.given();
  return problem;
}

}  // namespace strobe::api
