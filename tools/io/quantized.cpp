// SPDX-License-Identifier: Apache-2.0
#include "io/quantized.h"

#include <algorithm>

namespace strobe::io {
namespace {

HostTensor make_scales(ScaleUnit unit, const ConstTensorView& from) {
  const std::int64_t seqlen = from.shape[1];
  const auto scales = [&](std::int64_t rows) { return std::max<std::int64_t>((seqlen + rows - 1) / rows, 1); };
  switch (unit) {
    case ScaleUnit::tensor: return make_tensor(DType::float32, {1, 1, 1});
    case ScaleUnit::head: return make_tensor(DType::float32, {from.shape[0], from.shape[2], 1});
    case ScaleUnit::block: return make_tensor(DType::float32, {from.shape[0], from.shape[2], scales(128)});
    case ScaleUnit::group: return make_tensor(DType::float32, {from.shape[0], from.shape[2], scales(32)});
    case ScaleUnit::row: break;
  }
  return make_tensor(DType::float32, {from.shape[0], from.shape[2], scales(1)});
}

HostTensor make_like(DType dtype, const ConstTensorView& from) {
  return make_tensor(dtype, {from.shape[0], from.shape[1], from.shape[2], from.shape[3]});
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
                            const QuantizeOptions& options, const Execution& execution) {
  const std::int64_t keys = (k.shape[1] + 31) / 32 * 32;
  Quantized to{.q8 = make_like(options.element, q),
               .k8 = make_like(options.element, k),
               .v8 = make_tensor(options.element, {v.shape[0], v.shape[2], v.shape[3], keys}),
               .q_descale = make_scales(options.q_scales, q),
               .k_descale = make_scales(options.k_scales, k),
               .v_descale = make_scales(options.v_scales, v),
               .q_shift = {},
               .v_rotation = {options.rotate_v, options.seed}};
  if (options.center_k) to.q_shift = make_tensor(DType::float32, {q.shape[0], q.shape[2], q.shape[1]});
  QuantizeArguments arguments{.q = q,
                              .k = k,
                              .v = v,
                              .q8 = view(to.q8),
                              .k8 = view(to.k8),
                              .v8 = view(to.v8),
                              .q_descale = view(to.q_descale),
                              .k_descale = view(to.k_descale),
                              .v_descale = view(to.v_descale),
                              .q_shift = {}};
  if (options.center_k) arguments.q_shift = view(to.q_shift);
  if (Status status = quantize(arguments, options, execution); !status.ok()) return status;
  return to;
}

}  // namespace strobe::io
