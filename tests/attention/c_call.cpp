// SPDX-License-Identifier: Apache-2.0
#include "c_call.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "api/c_structs.h"
#include "strobe/strobe.h"

namespace strobe::test {
namespace {

template <class Pointer>
strobe_tensor tensor_of(const BasicTensorView<Pointer>& view) {
  strobe_tensor tensor{};
  tensor.data = const_cast<void*>(static_cast<const void*>(view.data));
  tensor.dtype = static_cast<std::int32_t>(view.dtype);
  tensor.device_type = static_cast<std::int32_t>(view.device.type);
  tensor.device_index = view.device.index;
  tensor.rank = view.rank;
  std::ranges::copy(view.shape, tensor.shape);
  std::ranges::copy(view.strides, tensor.strides);
  return tensor;
}

strobe_sequences sequences_of(const Sequences& from) {
  strobe_sequences to{};
  to.cu_seqlens_q = tensor_of(from.cu_seqlens_q);
  to.cu_seqlens_k = tensor_of(from.cu_seqlens_k);
  to.seqused_q = tensor_of(from.seqused_q);
  to.seqused_k = tensor_of(from.seqused_k);
  to.max_seqlen_q = std::max<std::int64_t>(from.max_seqlen_q, 0);
  to.max_seqlen_k = std::max<std::int64_t>(from.max_seqlen_k, 0);
  return to;
}

template <class From, class To>
void copy_shared(const From& from, To& to) {
  to.struct_size = sizeof to;
  to.q = tensor_of(from.q);
  to.k = tensor_of(from.k);
  to.v = tensor_of(from.v);
  to.o = tensor_of(from.o);
  to.lse = tensor_of(from.lse);
  to.sequences = sequences_of(from.sequences);
  const ScoreModifiers& m = from.modifiers;
  to.modifiers = {tensor_of(m.alibi_slopes), tensor_of(m.bias), tensor_of(m.sink), tensor_of(m.block_mask),
                  m.block_size};
  to.random = {from.random.seed, from.random.offset};
  to.random_on_device = from.random.on_device;
  to.dropout_first_batch = from.random.first_batch;
  to.dropout_first_head = from.random.first_head;
  to.dropout_heads = from.random.heads;
  to.offset_q = tensor_of(from.sequences.offset_q);
  to.offset_k = tensor_of(from.sequences.offset_k);
}

/// A function and lists of tensors of C's, which a call's arguments point to.
struct CExpression {
  std::optional<strobe_score_function> function;
  std::vector<strobe_tensor> captures, d_captures;

  template <class Arguments>
  explicit CExpression(const Arguments& from) {
    if (from.modifiers.function != nullptr) function = strobe_score_function{*from.modifiers.function, {}};
    for (const ConstTensorView& view : from.modifiers.captures) captures.push_back(tensor_of(view));
    if constexpr (requires { from.d_captures; }) {
      for (const TensorView& view : from.d_captures) d_captures.push_back(tensor_of(view));
    }
  }

  template <class To>
  void add_to(To& to) const {
    to.function = function ? &*function : nullptr;
    to.captures = captures.data();
    to.capture_count = static_cast<std::int32_t>(captures.size());
    if constexpr (requires { to.d_captures; }) to.d_captures = d_captures.empty() ? nullptr : d_captures.data();
  }
};

strobe_forward_arguments arguments_of(const ForwardArguments& from) {
  strobe_forward_arguments to{};
  copy_shared(from, to);
  to.q_descale = tensor_of(from.q_descale);
  to.k_descale = tensor_of(from.k_descale);
  to.v_descale = tensor_of(from.v_descale);
  to.page_table = tensor_of(from.page_table);
  to.max_logits = tensor_of(from.max_logits);
  to.q_shift = tensor_of(from.q_shift);
  to.v_rotation = {from.v_rotation.given ? 1 : 0, 0, from.v_rotation.seed};
  to.leftpad_k = tensor_of(from.sequences.leftpad_k);
  to.cache_batch_idx = tensor_of(from.sequences.cache_batch_idx);
  to.tree_mask = tensor_of(from.tree_mask);
  to.qv = tensor_of(from.qv);
  return to;
}

strobe_backward_arguments arguments_of(const BackwardArguments& from) {
  strobe_backward_arguments to{};
  copy_shared(from, to);
  to.d_o = tensor_of(from.d_o);
  to.d_lse = tensor_of(from.d_lse);
  to.dq = tensor_of(from.dq);
  to.dk = tensor_of(from.dk);
  to.dv = tensor_of(from.dv);
  to.d_bias = tensor_of(from.d_bias);
  to.d_sink = tensor_of(from.d_sink);
  to.qv = tensor_of(from.qv);
  to.dqv = tensor_of(from.dqv);
  return to;
}

strobe_jvp_arguments arguments_of(const JvpArguments& from) {
  strobe_jvp_arguments to{};
  copy_shared(from, to);
  to.q_tangent = tensor_of(from.q_tangent);
  to.k_tangent = tensor_of(from.k_tangent);
  to.v_tangent = tensor_of(from.v_tangent);
  to.o_tangent = tensor_of(from.o_tangent);
  to.lse_tangent = tensor_of(from.lse_tangent);
  return to;
}

strobe_options options_of(const AttentionOptions& from) {
  return {.struct_size = sizeof(strobe_options),
          .scale = from.scale.value_or(0.0F),
          .has_scale = from.scale ? 1 : 0,
          .causal = static_cast<std::int32_t>(from.causal),
          .has_window = 1,
          .window_left = from.window.left,
          .window_right = from.window.right,
          .softcap = from.softcap,
          .dropout = from.dropout,
          .chunk = from.chunk,
          .deterministic = from.deterministic ? 1 : 0,
          .row_invariant = from.row_invariant ? 1 : 0,
          .log_length = from.log_length,
          .normalize = static_cast<std::int32_t>(from.normalize)};
}

Status status_of(strobe_code code) { return {static_cast<StatusCode>(code), strobe_last_error()}; }

template <class Arguments>
Status plan_and_run(strobe_code (*make_plan)(const Arguments*, const strobe_options*, const strobe_execution*,
                                             strobe_plan**),
                    strobe_code (*run)(const strobe_plan*, const Arguments*, const strobe_execution*),
                    const Arguments& arguments, const AttentionOptions& options) {
  const strobe_options o = options_of(options);
  strobe_plan* plan = nullptr;
  Status status = status_of(make_plan(&arguments, &o, nullptr, &plan));
  if (status.ok()) status = status_of(run(plan, &arguments, nullptr));
  strobe_plan_destroy(plan);
  return status;
}

}  // namespace

Status call_from_c(const ForwardArguments& arguments, const AttentionOptions& options) {
  strobe_forward_arguments a = arguments_of(arguments);
  const CExpression expression(arguments);
  expression.add_to(a);
  const strobe_options o = options_of(options);
  return status_of(strobe_forward(&a, &o, nullptr));
}

Status call_from_c(const BackwardArguments& arguments, const AttentionOptions& options) {
  strobe_backward_arguments a = arguments_of(arguments);
  const CExpression expression(arguments);
  expression.add_to(a);
  const strobe_options o = options_of(options);
  return status_of(strobe_backward(&a, &o, nullptr));
}

Status call_from_c(const JvpArguments& arguments, const AttentionOptions& options) {
  const strobe_jvp_arguments a = arguments_of(arguments);
  const strobe_options o = options_of(options);
  return status_of(strobe_jvp(&a, &o, nullptr));
}

Status plan_from_c(const ForwardArguments& arguments, const AttentionOptions& options) {
  strobe_forward_arguments a = arguments_of(arguments);
  const CExpression expression(arguments);
  expression.add_to(a);
  return plan_and_run(strobe_plan_forward, strobe_plan_run_forward, a, options);
}

Status plan_from_c(const BackwardArguments& arguments, const AttentionOptions& options) {
  strobe_backward_arguments a = arguments_of(arguments);
  const CExpression expression(arguments);
  expression.add_to(a);
  return plan_and_run(strobe_plan_backward, strobe_plan_run_backward, a, options);
}

Status call_from_c(const QuantizeArguments& arguments, const QuantizeOptions& options) {
  strobe_quantize_arguments a{};
  a.struct_size = sizeof a;
  a.q = tensor_of(arguments.q);
  a.k = tensor_of(arguments.k);
  a.v = tensor_of(arguments.v);
  a.q8 = tensor_of(arguments.q8);
  a.k8 = tensor_of(arguments.k8);
  a.v8 = tensor_of(arguments.v8);
  a.q_descale = tensor_of(arguments.q_descale);
  a.k_descale = tensor_of(arguments.k_descale);
  a.v_descale = tensor_of(arguments.v_descale);
  a.q_shift = tensor_of(arguments.q_shift);
  a.sequences = sequences_of(arguments.sequences);
  strobe_quantize_options o{};
  o.struct_size = sizeof o;
  o.element = static_cast<std::int32_t>(options.element);
  o.q_scales = static_cast<std::int32_t>(options.q_scales);
  o.k_scales = static_cast<std::int32_t>(options.k_scales);
  o.v_scales = static_cast<std::int32_t>(options.v_scales);
  o.rotate_qk = options.rotate_qk ? 1 : 0;
  o.rotate_v = options.rotate_v ? 1 : 0;
  o.center_k = options.center_k ? 1 : 0;
  o.seed = options.seed;
  return status_of(strobe_quantize(&a, &o, nullptr));
}

Status call_from_c(const AppendArguments& arguments) {
  strobe_append_arguments a{};
  a.struct_size = sizeof a;
  a.k_cache = tensor_of(arguments.k_cache);
  a.v_cache = tensor_of(arguments.v_cache);
  a.k_new = tensor_of(arguments.k_new);
  a.v_new = tensor_of(arguments.v_new);
  a.cu_seqlens_new = tensor_of(arguments.cu_seqlens_new);
  a.cache_seqlens = tensor_of(arguments.cache_seqlens);
  a.page_table = tensor_of(arguments.page_table);
  a.leftpad_k = tensor_of(arguments.leftpad_k);
  a.cache_batch_idx = tensor_of(arguments.cache_batch_idx);
  a.cos = tensor_of(arguments.cos);
  a.sin = tensor_of(arguments.sin);
  a.positions = tensor_of(arguments.positions);
  a.q = tensor_of(arguments.q);
  a.q_out = tensor_of(arguments.q_out);
  a.cu_seqlens_q = tensor_of(arguments.cu_seqlens_q);
  a.positions_q = tensor_of(arguments.positions_q);
  a.k_descale = tensor_of(arguments.k_descale);
  a.v_descale = tensor_of(arguments.v_descale);
  a.k_row_descale = tensor_of(arguments.k_row_descale);
  a.v_row_descale = tensor_of(arguments.v_row_descale);
  a.interleaved = arguments.interleaved ? 1 : 0;
  a.q_at_first_position = arguments.q_in_order ? 0 : 1;
  return status_of(strobe_append(&a, nullptr));
}

Status call_from_c(const MergeArguments& arguments) {
  std::vector<strobe_tensor> part_o;
  std::vector<strobe_tensor> part_lse;
  for (const PartialResult& part : arguments.parts) {
    part_o.push_back(tensor_of(part.o));
    part_lse.push_back(tensor_of(part.lse));
  }
  strobe_merge_arguments a{};
  a.struct_size = sizeof a;
  a.part_o = part_o.data();
  a.part_lse = part_lse.data();
  a.parts = static_cast<std::int32_t>(arguments.parts.size());
  a.o = tensor_of(arguments.o);
  a.lse = tensor_of(arguments.lse);
  return status_of(strobe_merge(&a, nullptr));
}

}  // namespace strobe::test
