// SPDX-License-Identifier: Apache-2.0
#include "io/quantized.h"

#include <algorithm>

namespace strobe::io {
namespace {

/// Queries or keys: batched [batch, seqlen, heads, head_dim], or packed [total, heads, head_dim].
struct OperandSide {
  OperandSide(const ConstTensorView& rows, const ConstTensorView& cu_seqlens, std::int64_t max_seqlen)
      : packed(cu_seqlens.given()),
        batch(packed ? cu_seqlens.shape[0] - 1 : rows.shape[0]),
        seqlen(!packed                                        ? rows.shape[1]
               : max_seqlen < 0 || max_seqlen > rows.shape[0] ? rows.shape[0]
                                                              : max_seqlen),
        heads(rows.shape[packed ? 1 : 2]) {}

  bool packed;
  std::int64_t batch, seqlen, heads;
};

HostTensor make_scales(ScaleUnit unit, const OperandSide& side) {
  const auto scales = [&](std::int64_t rows) { return std::max<std::int64_t>((side.seqlen + rows - 1) / rows, 1); };
  switch (unit) {
    case ScaleUnit::tensor: return make_tensor(DType::float32, {1, 1, 1});
    case ScaleUnit::head: return make_tensor(DType::float32, {side.batch, side.heads, 1});
    case ScaleUnit::block: return make_tensor(DType::float32, {side.batch, side.heads, scales(128)});
    case ScaleUnit::group: return make_tensor(DType::float32, {side.batch, side.heads, scales(32)});
    case ScaleUnit::row: break;
  }
  return make_tensor(DType::float32, {side.batch, side.heads, scales(1)});
}

HostTensor make_like(DType dtype, const ConstTensorView& from) {
  return make_tensor(dtype, {from.shape.begin(), from.shape.begin() + from.rank});
}

HostTensor make_values(DType dtype, const ConstTensorView& v, const OperandSide& keys) {
  if (keys.packed) return make_tensor(dtype, {v.shape[1], v.shape[2], 32 * (v.shape[0] / 32 + keys.batch)});
  return make_tensor(dtype, {v.shape[0], v.shape[2], v.shape[3], (keys.seqlen + 31) / 32 * 32});
}

}  // namespace

ForwardArguments Quantized::arguments() const {
  ForwardArguments arguments;
  arguments.q = view(q8);
  arguments.k = view(k8);
  arguments.v = view(v8);
  arguments.q_descale = view(q_descale);
  arguments.k_descale = view(k_descale);
  arguments.v_descale = view(v_descale);
  if (!q_shift.shape.empty()) arguments.q_shift = view(q_shift);
  arguments.v_rotation = v_rotation;
  return arguments;
}

Result<Quantized> quantized(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                            const QuantizeOptions& options, const Execution& execution, const Sequences& sequences) {
  const OperandSide queries(q, sequences.cu_seqlens_q, sequences.max_seqlen_q);
  const OperandSide keys(k, sequences.cu_seqlens_k, sequences.max_seqlen_k);
  Quantized to{.q8 = make_like(options.element, q),
               .k8 = make_like(options.element, k),
               .v8 = make_values(options.element, v, keys),
               .q_descale = make_scales(options.q_scales, queries),
               .k_descale = make_scales(options.k_scales, keys),
               .v_descale = make_scales(options.v_scales, keys),
               .q_shift = {},
               .v_rotation = {options.rotate_v, options.seed}};
  if (options.center_k) to.q_shift = make_tensor(DType::float32, {queries.batch, queries.heads, queries.seqlen});
  QuantizeArguments arguments{.q = q,
                              .k = k,
                              .v = v,
                              .q8 = view(to.q8),
                              .k8 = view(to.k8),
                              .v8 = view(to.v8),
                              .q_descale = view(to.q_descale),
                              .k_descale = view(to.k_descale),
                              .v_descale = view(to.v_descale),
                              .q_shift = {},
                              .sequences = sequences};
  if (options.center_k) arguments.q_shift = view(to.q_shift);
  if (Status status = quantize(arguments, options, execution); !status.ok()) return status;
  return to;
}

}  // namespace strobe::io
