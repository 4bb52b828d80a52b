// SPDX-License-Identifier: Apache-2.0
#include "api/eight_bit.h"

#include <string_view>
#include <utility>

#include "call/eight_bit.h"

namespace strobe::api {
namespace {

constexpr std::string_view kValueLayout = "[batch, heads_kv, head_dim_v, round_up(seqlen_k, 32)]";
constexpr std::string_view kPackedValueLayout = "[heads_kv, head_dim_v, 32 * (total_k / 32 + batch)]";
constexpr std::string_view kScaleLayout = "[batch or 1, heads or 1, scales]";

/// The rows that share one of `scales` scales of a sequence of `seqlen` rows; 0 if no unit has as many.
std::int64_t rows_of_scale(std::int64_t scales, std::int64_t seqlen) {
  for (const ScaleUnit unit : {ScaleUnit::head, ScaleUnit::block, ScaleUnit::group, ScaleUnit::row}) {
    const std::int64_t rows = rows_per_scale(unit, seqlen);
    if (scales == std::max<std::int64_t>(ceil_div(seqlen, rows), 1)) return rows;
  }
  return 0;
}

Status check_scales(const NamedTensor& scales, std::int64_t batch, std::int64_t heads, std::int64_t seqlen,
                    const Device& device, std::int64_t& rows) {
  Status status = first_failure([&] { return check_layout(scales, 3, kScaleLayout); },
                                [&] { return check_dtype(scales, DType::float32, ""); },
                                [&] { return check_device(scales, device); });
  if (!status.ok()) return status;
  const auto& shape = scales.view.shape;
  rows = rows_of_scale(shape[2], seqlen);
  if ((shape[0] == batch || shape[0] == 1) && (shape[1] == heads || shape[1] == 1) && rows != 0) return {};
  return invalid("{} has shape {}: it must be [{} or 1, {} or 1, n], with n = 1, {}, {} or {}", scales.name,
                 shape_text(scales.view), batch, heads, ceil_div(seqlen, kBlockRows), ceil_div(seqlen, kGroupRows),
                 seqlen);
}

/// Scales of packed keys and of padded ones, whose rows are not counted from their sequence's first key: only one for
/// all of them fits.
Status check_scales_without_rows(const NamedTensor& scales, const AttentionProblem& problem) {
  const bool by_position = !problem.packed_k && !problem.has_leftpad_k;
  if (by_position || scales.view.shape[2] == 1) return {};
  return unsupported("{} has shape {}: {} take one scale for all rows of a head, [batch or 1, heads or 1, 1]",
                     scales.name, shape_text(scales.view), problem.packed_k ? "packed keys" : "keys with left padding");
}

/// What no engine combines with 8-bit inputs.
Status check_options(const ForwardArguments& arguments, const AttentionProblem& problem) {
  for (const auto& [name, wanted] :
       {std::pair{"bias", problem.modifiers.has_bias}, std::pair{"block_mask", problem.modifiers.block_size != 0},
        std::pair{"dropout", problem.dropout != 0.0F}, std::pair{"max_logits", arguments.max_logits.given()},
        std::pair{"page_table", problem.page_size != 0}, std::pair{"leftpad_k", problem.has_leftpad_k},
        std::pair{"cache_batch_idx", problem.has_cache_batch_idx}, std::pair{"row_invariant", problem.row_invariant},
        std::pair{"tree_mask", problem.has_tree_mask}, std::pair{"qv", problem.has_qv}}) {
    if (wanted) return unsupported("{} is not supported with {} inputs", name, name_of(problem.dtype));
  }
  return {};
}

/// What belongs to an 8-bit q may not be given.
Status check_no_query_scales(const ForwardArguments& a) {
  for (const auto& [name, view] : {NamedTensor{"q_descale", a.q_descale}, NamedTensor{"q_shift", a.q_shift}}) {
    if (view.given()) return invalid("{} is given, but q is {}: it belongs to 8-bit inputs", name, name_of(a.q.dtype));
  }
  if (!a.v_rotation.given) return {};
  return invalid("v_rotation is given, but q is {}: it belongs to 8-bit inputs", name_of(a.q.dtype));
}

/// 8-bit K and V whose sequences lie one behind the other.
Status check_packed_layouts(const ForwardArguments& a) {
  const NamedTensor cu_seqlens{"cu_seqlens_k", a.sequences.cu_seqlens_k};
  const NamedTensor v{"v", a.v};
  return first_failure([&] { return check_layout(cu_seqlens, 1, "[batch + 1]"); },
                       [&]() -> Status {
                         if (cu_seqlens.view.shape[0] >= 1) return {};
                         return invalid("{} has shape [0]: it must be [batch + 1]", cu_seqlens.name);
                       },
                       [&] { return check_layout({"k", a.k}, 3, "[total_k, heads_kv, head_dim]"); },
                       [&] { return check_layout(v, 3, kPackedValueLayout); },
                       [&] {
                         const std::int64_t columns = packed_value_start(a.k.shape[0], cu_seqlens.view.shape[0] - 1);
                         return check_shape(v, {a.k.shape[1], a.v.shape[1], columns}, kPackedValueLayout);
                       });
}

}  // namespace

ConstTensorView rows_of_values(const ConstTensorView& v, const ConstTensorView& k) {
  ConstTensorView rows = v;
  if (k.rank == 3) {
    rows.shape = {k.shape[0], v.shape[0], v.shape[1]};
    rows.strides = {0, 0, 1};
    return rows;
  }
  rows.shape = {v.shape[0], k.shape[1], v.shape[1], v.shape[2]};
  rows.strides = {0, 0, 0, 1};
  return rows;
}

Status check_eight_bit(const ForwardArguments& a) {
  for (const auto& [name, view] : {NamedTensor{"q_descale", a.q_descale}, NamedTensor{"k_descale", a.k_descale},
                                   NamedTensor{"v_descale", a.v_descale}}) {
    if (!view.given()) return invalid("{} is not given: 8-bit inputs need scales", name);
  }
  if (a.sequences.cu_seqlens_k.given()) return check_packed_layouts(a);
  const NamedTensor v{"v", a.v};
  Status status = first_failure([&] { return check_layout({"k", a.k}, 4, "[batch, seqlen_k, heads_kv, head_dim]"); },
                                [&] { return check_layout(v, 4, kValueLayout); });
  if (!status.ok()) return status;
  const auto& shape = a.k.shape;
  return check_shape(v, {shape[0], shape[2], a.v.shape[2], round_up(shape[1], kValueKeys)}, kValueLayout);
}

bool is_stored(const ForwardArguments& a) { return !is_eight_bit(a.q.dtype) && is_eight_bit(a.k.dtype); }

Status check_stored(const ForwardArguments& a) {
  for (const auto& [name, view] : {NamedTensor{"k_descale", a.k_descale}, NamedTensor{"v_descale", a.v_descale}}) {
    if (!view.given()) return invalid("{} is not given: k and v are {} and need scales", name, name_of(a.k.dtype));
  }
  return check_no_query_scales(a);
}

Status check_no_scales(const ForwardArguments& a) {
  for (const auto& [name, view] : {NamedTensor{"k_descale", a.k_descale}, NamedTensor{"v_descale", a.v_descale}}) {
    if (view.given()) return invalid("{} is given, but k is {}: it belongs to 8-bit inputs", name, name_of(a.k.dtype));
  }
  return check_no_query_scales(a);
}

Status read_stored(const ForwardArguments& a, AttentionProblem& problem) {
  problem.stored.dtype = a.k.dtype;
  const auto check = [&](const NamedTensor& scales, std::int64_t& rows) {
    return first_failure(
        [&] { return check_scales(scales, problem.batch, problem.heads_kv, problem.seqlen_k, problem.device, rows); },
        [&] { return check_scales_without_rows(scales, problem); });
  };
  return first_failure([&] { return check({"k_descale", a.k_descale}, problem.stored.k_rows); },
                       [&] { return check({"v_descale", a.v_descale}, problem.stored.v_rows); });
}

Status read_eight_bit(const ForwardArguments& a, AttentionProblem& problem) {
  EightBitShape& shape = problem.eight_bit;
  shape.output = a.o.dtype;
  shape.has_q_shift = a.q_shift.given();
  shape.v_rotated = a.v_rotation.given;
  const NamedTensor shift{"q_shift", a.q_shift};
  const std::int64_t b = problem.batch;
  return first_failure([&] { return check_options(a, problem); },
                       [&] {
                         return check_scales({"q_descale", a.q_descale}, b, problem.heads_q, problem.seqlen_q,
                                             problem.device, shape.q_rows);
                       },
                       [&] {
                         return check_scales({"k_descale", a.k_descale}, b, problem.heads_kv, problem.seqlen_k,
                                             problem.device, shape.k_rows);
                       },
                       [&] {
                         return check_scales({"v_descale", a.v_descale}, b, problem.heads_kv, problem.seqlen_k,
                                             problem.device, shape.v_rows);
                       },
                       [&]() -> Status {
                         if (!shift.view.given()) return {};
                         constexpr std::string_view kLayout = "[batch, heads_q, seqlen_q]";
                         return first_failure(
                             [&] { return check_layout(shift, 3, kLayout); },
                             [&] { return check_dtype(shift, DType::float32, ""); },
                             [&] { return check_device(shift, problem.device); },
                             [&] { return check_shape(shift, {b, problem.heads_q, problem.seqlen_q}, kLayout); });
                       });
}

}  // namespace strobe::api
