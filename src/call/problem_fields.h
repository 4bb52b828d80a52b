// SPDX-License-Identifier: Apache-2.0
// The fields of a problem by name: calls are recorded and read back as text by loops over these lists.
#pragma once

#include <array>
#include <string_view>

#include "call/fields.h"
#include "call/problem.h"

namespace strobe {

/// The names of an enumeration's values, in order.
constexpr auto names_of(Pass) { return std::to_array<std::string_view>({"forward", "backward", "jvp"}); }
constexpr auto names_of(CausalMask) { return std::to_array<std::string_view>({"none", "bottom_right", "top_left"}); }
constexpr auto names_of(Normalization) { return std::to_array<std::string_view>({"softmax", "none"}); }
constexpr auto names_of(DType) {
  return std::to_array<std::string_view>(
      {"float32", "float16", "bfloat16", "int32", "float8_e4m3", "uint8", "int8", "int64"});
}

constexpr auto fields_of(const Window&) {
  return all_fields(field("left", &Window::left), field("right", &Window::right));
}

constexpr auto fields_of(const ModifierShape&) {
  using Shape = ModifierShape;
  return all_fields(field("has_alibi", &Shape::has_alibi), field("alibi_per_batch", &Shape::alibi_per_batch),
                    field("has_bias", &Shape::has_bias), field("bias_dtype", &Shape::bias_dtype),
                    field("bias_per_batch", &Shape::bias_per_batch), field("bias_per_head", &Shape::bias_per_head),
                    field("has_sink", &Shape::has_sink), field("block_size", &Shape::block_size),
                    field("blocks_per_batch", &Shape::blocks_per_batch),
                    field("blocks_per_head", &Shape::blocks_per_head));
}

constexpr auto fields_of(const EightBitShape&) {
  using Shape = EightBitShape;
  return all_fields(field("q_rows", &Shape::q_rows), field("k_rows", &Shape::k_rows), field("v_rows", &Shape::v_rows),
                    field("output", &Shape::output), field("has_q_shift", &Shape::has_q_shift),
                    field("v_rotated", &Shape::v_rotated));
}

constexpr auto fields_of(const StoredShape&) {
  using Shape = StoredShape;
  return all_fields(field("dtype", &Shape::dtype), field("k_rows", &Shape::k_rows), field("v_rows", &Shape::v_rows));
}

constexpr auto fields_of(const AttentionProblem&) {
  using P = AttentionProblem;
  return all_fields(
      field("pass", &P::pass), field("dtype", &P::dtype), field("device", &P::device), field("batch", &P::batch),
      field("heads_q", &P::heads_q), field("heads_kv", &P::heads_kv), field("head_dim", &P::head_dim),
      field("head_dim_v", &P::head_dim_v), field("seqlen_q", &P::seqlen_q), field("seqlen_k", &P::seqlen_k),
      field("total_q", &P::total_q), field("total_k", &P::total_k), field("packed_q", &P::packed_q),
      field("packed_k", &P::packed_k), field("has_seqused_q", &P::has_seqused_q),
      field("has_seqused_k", &P::has_seqused_k), field("page_size", &P::page_size),
      field("has_leftpad_k", &P::has_leftpad_k), field("has_cache_batch_idx", &P::has_cache_batch_idx),
      field("has_tree_mask", &P::has_tree_mask), field("has_qv", &P::has_qv), field("has_offsets", &P::has_offsets),
      field("scale", &P::scale), field("causal", &P::causal), field("window", &P::window), field("chunk", &P::chunk),
      field("softcap", &P::softcap), field("log_length", &P::log_length), field("dropout", &P::dropout),
      field("deterministic", &P::deterministic), field("row_invariant", &P::row_invariant),
      field("normalize", &P::normalize), field("modifiers", &P::modifiers), field("eight_bit", &P::eight_bit),
      field("stored", &P::stored), field("expression", &P::expression), field("wants_lse", &P::wants_lse),
      field("wants_max_logits", &P::wants_max_logits), field("has_d_lse", &P::has_d_lse),
      field("wants_d_bias", &P::wants_d_bias), field("wants_d_sink", &P::wants_d_sink));
}

}  // namespace strobe
