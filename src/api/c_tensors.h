// SPDX-License-Identifier: Apache-2.0
// Where the C ABI's structs of arguments have the tensors of their calls. A struct that lacks a tensor of its call does
// not compile.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <string_view>

#include "call/tensors.h"
#include "strobe/strobe.h"

namespace strobe::api {

/// A tensor's place in a C struct, in bytes.
struct CTensor {
  std::string_view name;
  std::size_t offset;
};

namespace internal {

template <std::size_t... counts>
constexpr auto joined(const std::array<CTensor, counts>&... parts) {
  std::array<CTensor, (counts + ...)> all{};
  auto to = all.begin();
  ((to = std::copy(parts.begin(), parts.end(), to)), ...);
  return all;
}

/// The tensors of a part that begins at `offset`.
template <std::size_t count>
constexpr auto behind(std::size_t offset, std::array<CTensor, count> tensors) {
  for (CTensor& tensor : tensors) tensor.offset += offset;
  return tensors;
}

constexpr auto c_tensors(const strobe_sequences*) {
  using S = strobe_sequences;
  return std::array{CTensor{"cu_seqlens_q", offsetof(S, cu_seqlens_q)},
                    CTensor{"cu_seqlens_k", offsetof(S, cu_seqlens_k)}, CTensor{"seqused_q", offsetof(S, seqused_q)},
                    CTensor{"seqused_k", offsetof(S, seqused_k)}};
}

constexpr auto c_tensors(const strobe_score_modifiers*) {
  using S = strobe_score_modifiers;
  return std::array{CTensor{"alibi_slopes", offsetof(S, alibi_slopes)}, CTensor{"bias", offsetof(S, bias)},
                    CTensor{"sink", offsetof(S, sink)}, CTensor{"block_mask", offsetof(S, block_mask)}};
}

template <class Struct>
constexpr auto sequences_of() {
  return behind(offsetof(Struct, sequences), c_tensors(static_cast<const strobe_sequences*>(nullptr)));
}

template <class Struct>
constexpr auto modifiers_of() {
  return behind(offsetof(Struct, modifiers), c_tensors(static_cast<const strobe_score_modifiers*>(nullptr)));
}

/// What Sequences has gained since strobe_sequences became a part of other structs.
template <class Struct>
constexpr auto offsets_of() {
  return std::array{CTensor{"offset_q", offsetof(Struct, offset_q)}, CTensor{"offset_k", offsetof(Struct, offset_k)}};
}

constexpr auto c_tensors(const strobe_forward_arguments*) {
  using S = strobe_forward_arguments;
  return joined(
      std::array{CTensor{"q", offsetof(S, q)}, CTensor{"k", offsetof(S, k)}, CTensor{"v", offsetof(S, v)},
                 CTensor{"o", offsetof(S, o)}, CTensor{"lse", offsetof(S, lse)}},
      sequences_of<S>(),
      std::array{CTensor{"q_descale", offsetof(S, q_descale)}, CTensor{"k_descale", offsetof(S, k_descale)},
                 CTensor{"v_descale", offsetof(S, v_descale)}, CTensor{"page_table", offsetof(S, page_table)}},
      modifiers_of<S>(),
      std::array{CTensor{"max_logits", offsetof(S, max_logits)}, CTensor{"q_shift", offsetof(S, q_shift)},
                 CTensor{"leftpad_k", offsetof(S, leftpad_k)}, CTensor{"cache_batch_idx", offsetof(S, cache_batch_idx)},
                 CTensor{"tree_mask", offsetof(S, tree_mask)}},
      offsets_of<S>(), std::array{CTensor{"qv", offsetof(S, qv)}});
}

constexpr auto c_tensors(const strobe_backward_arguments*) {
  using S = strobe_backward_arguments;
  return joined(
      std::array{CTensor{"q", offsetof(S, q)}, CTensor{"k", offsetof(S, k)}, CTensor{"v", offsetof(S, v)},
                 CTensor{"o", offsetof(S, o)}, CTensor{"lse", offsetof(S, lse)}, CTensor{"d_o", offsetof(S, d_o)},
                 CTensor{"d_lse", offsetof(S, d_lse)}, CTensor{"dq", offsetof(S, dq)}, CTensor{"dk", offsetof(S, dk)},
                 CTensor{"dv", offsetof(S, dv)}},
      sequences_of<S>(), modifiers_of<S>(),
      std::array{CTensor{"d_bias", offsetof(S, d_bias)}, CTensor{"d_sink", offsetof(S, d_sink)}}, offsets_of<S>(),
      std::array{CTensor{"qv", offsetof(S, qv)}, CTensor{"dqv", offsetof(S, dqv)}});
}

constexpr auto c_tensors(const strobe_jvp_arguments*) {
  using S = strobe_jvp_arguments;
  return joined(std::array{CTensor{"q", offsetof(S, q)}, CTensor{"k", offsetof(S, k)}, CTensor{"v", offsetof(S, v)},
                           CTensor{"q_tangent", offsetof(S, q_tangent)}, CTensor{"k_tangent", offsetof(S, k_tangent)},
                           CTensor{"v_tangent", offsetof(S, v_tangent)}, CTensor{"o", offsetof(S, o)},
                           CTensor{"lse", offsetof(S, lse)}, CTensor{"o_tangent", offsetof(S, o_tangent)},
                           CTensor{"lse_tangent", offsetof(S, lse_tangent)}},
                sequences_of<S>(), modifiers_of<S>(), offsets_of<S>());
}

constexpr auto c_tensors(const strobe_quantize_arguments*) {
  using S = strobe_quantize_arguments;
  return joined(
      std::array{CTensor{"q", offsetof(S, q)}, CTensor{"k", offsetof(S, k)}, CTensor{"v", offsetof(S, v)},
                 CTensor{"q8", offsetof(S, q8)}, CTensor{"k8", offsetof(S, k8)}, CTensor{"v8", offsetof(S, v8)},
                 CTensor{"q_descale", offsetof(S, q_descale)}, CTensor{"k_descale", offsetof(S, k_descale)},
                 CTensor{"v_descale", offsetof(S, v_descale)}, CTensor{"q_shift", offsetof(S, q_shift)}},
      sequences_of<S>());
}

constexpr auto c_tensors(const strobe_append_arguments*) {
  using S = strobe_append_arguments;
  return std::array{CTensor{"k_cache", offsetof(S, k_cache)},
                    CTensor{"v_cache", offsetof(S, v_cache)},
                    CTensor{"k_new", offsetof(S, k_new)},
                    CTensor{"v_new", offsetof(S, v_new)},
                    CTensor{"cu_seqlens_new", offsetof(S, cu_seqlens_new)},
                    CTensor{"cache_seqlens", offsetof(S, cache_seqlens)},
                    CTensor{"page_table", offsetof(S, page_table)},
                    CTensor{"leftpad_k", offsetof(S, leftpad_k)},
                    CTensor{"cache_batch_idx", offsetof(S, cache_batch_idx)},
                    CTensor{"cos", offsetof(S, cos)},
                    CTensor{"sin", offsetof(S, sin)},
                    CTensor{"positions", offsetof(S, positions)},
                    CTensor{"q", offsetof(S, q)},
                    CTensor{"q_out", offsetof(S, q_out)},
                    CTensor{"cu_seqlens_q", offsetof(S, cu_seqlens_q)},
                    CTensor{"positions_q", offsetof(S, positions_q)},
                    CTensor{"k_descale", offsetof(S, k_descale)},
                    CTensor{"v_descale", offsetof(S, v_descale)},
                    CTensor{"k_row_descale", offsetof(S, k_row_descale)},
                    CTensor{"v_row_descale", offsetof(S, v_row_descale)}};
}

/// In the order of the struct, none twice.
template <class Struct>
constexpr bool is_in_order() {
  const auto tensors = c_tensors(static_cast<const Struct*>(nullptr));
  return std::ranges::adjacent_find(tensors, std::ranges::greater_equal(), &CTensor::offset) == tensors.end();
}

/// Whether the struct has the tensors of the call, and nothing else, but for those named in `lacks`.
template <class Struct, class Arguments>
constexpr bool has_all_but(std::initializer_list<std::string_view> lacks) {
  const auto tensors = c_tensors(static_cast<const Struct*>(nullptr));
  const bool has = std::ranges::all_of(kTensors<Arguments>, [&](const CallTensor& tensor) {
    const bool in_struct = std::ranges::find(tensors, tensor.name, &CTensor::name) != tensors.end();
    const bool lacking = std::ranges::find(lacks, tensor.name) != lacks.end();
    return in_struct != lacking;
  });
  return has && tensors.size() + lacks.size() == kTensors<Arguments>.size();
}

static_assert(is_in_order<strobe_forward_arguments>() && is_in_order<strobe_backward_arguments>());
static_assert(is_in_order<strobe_jvp_arguments>());
static_assert(is_in_order<strobe_quantize_arguments>() && is_in_order<strobe_append_arguments>());
static_assert(has_all_but<strobe_forward_arguments, ForwardArguments>({}));
static_assert(has_all_but<strobe_append_arguments, AppendArguments>({}));
// A cache is the forward's alone; the other calls reject what of Sequences belongs to one. A quantisation has no use
// for offsets.
static_assert(has_all_but<strobe_backward_arguments, BackwardArguments>({"leftpad_k", "cache_batch_idx"}));
static_assert(has_all_but<strobe_jvp_arguments, JvpArguments>({"leftpad_k", "cache_batch_idx"}));
static_assert(has_all_but<strobe_quantize_arguments, QuantizeArguments>({"leftpad_k", "cache_batch_idx", "offset_q",
                                                                         "offset_k"}));

}  // namespace internal

/// The tensors of a C struct, in its order.
template <class Struct>
inline constexpr auto kCTensors = internal::c_tensors(static_cast<const Struct*>(nullptr));

}  // namespace strobe::api
