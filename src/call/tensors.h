// SPDX-License-Identifier: Apache-2.0
// Every tensor of a call, listed once. Checks, the C ABI, Python and the program go through these lists. A struct of
// arguments with a field that its list lacks does not compile.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "call/count_fields.h"
#include "strobe/attention.h"
#include "strobe/cache.h"
#include "strobe/jvp.h"
#include "strobe/quantize.h"
#include "strobe/status.h"
#include "strobe/tensor.h"

namespace strobe {

/// What a call does with a tensor.
enum class TensorRole : std::uint8_t {
  input,
  indices,  // an input of lengths, page numbers, entries or positions: int32, and its values are checked
  output,
};

/// The dtypes that a tensor may have.
enum class Elements : std::uint8_t {
  floats,  // float32, float16 or bfloat16
  like_q,
  float32,
  float32_or_like_q,
  int32,
  int64,
  bytes,      // uint8 or bool
  eight_bit,  // int8 or float8_e4m3
  cached,     // floats or eight_bit
  captured,   // as the call's function says
};

/// A tensor of a call, by the name that messages call it.
struct CallTensor {
  std::string_view name;
  TensorRole role;
  Elements elements;
};

/// Whether it holds the cumulative lengths of packed sequences: [batch + 1].
constexpr bool is_cumulative(const CallTensor& tensor) { return tensor.name.starts_with("cu_seqlens"); }

namespace internal {

template <class Struct, class View>
struct TensorField {
  CallTensor tensor;
  View Struct::* member;
};

/// A field with tensors of its own.
template <class Struct, class Part>
struct PartField {
  Part Struct::* member;
};

/// A field with any number of tensors, all called by one name.
template <class Struct, class Views>
struct TensorsField {
  CallTensor tensor;
  Views Struct::* members;
};

/// A field that is no tensor.
template <class Struct, class Value>
struct OtherField {
  Value Struct::* value;
};

template <class Struct>
constexpr auto input(std::string_view name, Elements elements, ConstTensorView Struct::* member) {
  return TensorField<Struct, ConstTensorView>{{name, TensorRole::input, elements}, member};
}

template <class Struct>
constexpr auto indices(std::string_view name, ConstTensorView Struct::* member) {
  return TensorField<Struct, ConstTensorView>{{name, TensorRole::indices, Elements::int32}, member};
}

template <class Struct>
constexpr auto output(std::string_view name, Elements elements, TensorView Struct::* member) {
  return TensorField<Struct, TensorView>{{name, TensorRole::output, elements}, member};
}

template <class Struct>
constexpr auto inputs(std::string_view name, std::span<const ConstTensorView> Struct::* members) {
  return TensorsField<Struct, std::span<const ConstTensorView>>{{name, TensorRole::input, Elements::captured}, members};
}

template <class Struct>
constexpr auto outputs(std::string_view name, std::span<const TensorView> Struct::* members) {
  return TensorsField<Struct, std::span<const TensorView>>{{name, TensorRole::output, Elements::float32}, members};
}

template <class Struct, class Part>
constexpr auto part(Part Struct::* member) {
  return PartField<Struct, Part>{member};
}

template <class Struct, class Value>
constexpr auto other(Value Struct::* value) {
  return OtherField<Struct, Value>{value};
}

/// Does not compile when a field of `Struct` is missing.
template <class Struct, class... Fields>
constexpr std::tuple<Fields...> all_fields(const Fields&... fields) {
  static_assert(sizeof...(Fields) == count_fields<Struct>(), "every field of the struct must be listed");
  return {fields...};
}

/// The fields of a struct of arguments, in the order in which its tensors are checked.
template <class Struct>
inline constexpr std::tuple<> kFields;

template <>
inline constexpr auto kFields<Sequences> = all_fields<Sequences>(
    indices("cu_seqlens_q", &Sequences::cu_seqlens_q), indices("cu_seqlens_k", &Sequences::cu_seqlens_k),
    indices("seqused_q", &Sequences::seqused_q), indices("seqused_k", &Sequences::seqused_k),
    indices("leftpad_k", &Sequences::leftpad_k), indices("cache_batch_idx", &Sequences::cache_batch_idx),
    other(&Sequences::max_seqlen_q), other(&Sequences::max_seqlen_k), indices("offset_q", &Sequences::offset_q),
    indices("offset_k", &Sequences::offset_k));

template <>
inline constexpr auto kFields<ScoreModifiers> = all_fields<ScoreModifiers>(
    input("alibi_slopes", Elements::float32, &ScoreModifiers::alibi_slopes),
    input("bias", Elements::float32_or_like_q, &ScoreModifiers::bias),
    input("sink", Elements::float32, &ScoreModifiers::sink),
    input("block_mask", Elements::bytes, &ScoreModifiers::block_mask), other(&ScoreModifiers::block_size),
    other(&ScoreModifiers::function), inputs("captures", &ScoreModifiers::captures));

template <>
inline constexpr auto kFields<ForwardArguments> = all_fields<ForwardArguments>(
    input("q", Elements::floats, &ForwardArguments::q), input("k", Elements::like_q, &ForwardArguments::k),
    input("v", Elements::like_q, &ForwardArguments::v),
    input("q_descale", Elements::float32, &ForwardArguments::q_descale),
    input("k_descale", Elements::float32, &ForwardArguments::k_descale),
    input("v_descale", Elements::float32, &ForwardArguments::v_descale),
    input("q_shift", Elements::float32, &ForwardArguments::q_shift),
    indices("page_table", &ForwardArguments::page_table),
    input("tree_mask", Elements::int64, &ForwardArguments::tree_mask), part(&ForwardArguments::sequences),
    part(&ForwardArguments::modifiers), output("o", Elements::like_q, &ForwardArguments::o),
    output("lse", Elements::float32, &ForwardArguments::lse),
    output("max_logits", Elements::float32, &ForwardArguments::max_logits), other(&ForwardArguments::random),
    other(&ForwardArguments::v_rotation), input("qv", Elements::like_q, &ForwardArguments::qv));

template <>
inline constexpr auto kFields<BackwardArguments> = all_fields<BackwardArguments>(
    input("q", Elements::floats, &BackwardArguments::q), input("k", Elements::like_q, &BackwardArguments::k),
    input("v", Elements::like_q, &BackwardArguments::v), input("o", Elements::like_q, &BackwardArguments::o),
    input("lse", Elements::float32, &BackwardArguments::lse), input("d_o", Elements::like_q, &BackwardArguments::d_o),
    input("d_lse", Elements::float32, &BackwardArguments::d_lse), part(&BackwardArguments::sequences),
    part(&BackwardArguments::modifiers), output("dq", Elements::like_q, &BackwardArguments::dq),
    output("dk", Elements::like_q, &BackwardArguments::dk), output("dv", Elements::like_q, &BackwardArguments::dv),
    output("d_bias", Elements::float32, &BackwardArguments::d_bias),
    output("d_sink", Elements::float32, &BackwardArguments::d_sink), other(&BackwardArguments::random),
    outputs("d_captures", &BackwardArguments::d_captures), input("qv", Elements::like_q, &BackwardArguments::qv),
    output("dqv", Elements::like_q, &BackwardArguments::dqv));

template <>
inline constexpr auto kFields<JvpArguments> = all_fields<JvpArguments>(
    input("q", Elements::floats, &JvpArguments::q), input("k", Elements::like_q, &JvpArguments::k),
    input("v", Elements::like_q, &JvpArguments::v), input("q_tangent", Elements::like_q, &JvpArguments::q_tangent),
    input("k_tangent", Elements::like_q, &JvpArguments::k_tangent),
    input("v_tangent", Elements::like_q, &JvpArguments::v_tangent), part(&JvpArguments::sequences),
    part(&JvpArguments::modifiers), output("o", Elements::like_q, &JvpArguments::o),
    output("lse", Elements::float32, &JvpArguments::lse),
    output("o_tangent", Elements::like_q, &JvpArguments::o_tangent),
    output("lse_tangent", Elements::float32, &JvpArguments::lse_tangent), other(&JvpArguments::random));

template <>
inline constexpr auto kFields<QuantizeArguments> = all_fields<QuantizeArguments>(
    input("q", Elements::floats, &QuantizeArguments::q), input("k", Elements::like_q, &QuantizeArguments::k),
    input("v", Elements::like_q, &QuantizeArguments::v), part(&QuantizeArguments::sequences),
    output("q8", Elements::eight_bit, &QuantizeArguments::q8),
    output("k8", Elements::eight_bit, &QuantizeArguments::k8),
    output("v8", Elements::eight_bit, &QuantizeArguments::v8),
    output("q_descale", Elements::float32, &QuantizeArguments::q_descale),
    output("k_descale", Elements::float32, &QuantizeArguments::k_descale),
    output("v_descale", Elements::float32, &QuantizeArguments::v_descale),
    output("q_shift", Elements::float32, &QuantizeArguments::q_shift));

template <>
inline constexpr auto kFields<AppendArguments> = all_fields<AppendArguments>(
    output("k_cache", Elements::cached, &AppendArguments::k_cache),
    output("v_cache", Elements::cached, &AppendArguments::v_cache),
    output("q_out", Elements::floats, &AppendArguments::q_out),
    output("k_row_descale", Elements::float32, &AppendArguments::k_row_descale),
    output("v_row_descale", Elements::float32, &AppendArguments::v_row_descale),
    input("k_new", Elements::floats, &AppendArguments::k_new),
    input("v_new", Elements::floats, &AppendArguments::v_new), input("q", Elements::floats, &AppendArguments::q),
    indices("cache_seqlens", &AppendArguments::cache_seqlens),
    indices("cu_seqlens_new", &AppendArguments::cu_seqlens_new),
    indices("cu_seqlens_q", &AppendArguments::cu_seqlens_q), indices("page_table", &AppendArguments::page_table),
    indices("leftpad_k", &AppendArguments::leftpad_k), indices("cache_batch_idx", &AppendArguments::cache_batch_idx),
    input("cos", Elements::floats, &AppendArguments::cos), input("sin", Elements::floats, &AppendArguments::sin),
    indices("positions", &AppendArguments::positions), indices("positions_q", &AppendArguments::positions_q),
    input("k_descale", Elements::float32, &AppendArguments::k_descale),
    input("v_descale", Elements::float32, &AppendArguments::v_descale), other(&AppendArguments::interleaved),
    other(&AppendArguments::q_in_order));

}  // namespace internal

/// visit(tensor, view) for each tensor of a struct of arguments, given or not: `tensor` is its CallTensor, `view` a
/// TensorView& of an output and a ConstTensorView& of an input, const where the arguments are.
template <class Arguments, class Visit>
constexpr void for_each_tensor(Arguments& arguments, const Visit& visit) {
  const auto visit_one = [&]<class Field>(const Field& field) {
    if constexpr (requires { field.tensor, field.member; }) {
      visit(field.tensor, arguments.*field.member);
    } else if constexpr (requires { field.member; }) {
      for_each_tensor(arguments.*field.member, visit);
    }
  };
  std::apply([&](const auto&... fields) { (visit_one(fields), ...); },
             internal::kFields<std::remove_const_t<Arguments>>);
}

/// visit(tensor, view) for each of the tensors that a call has any number of: captures and their gradients.
template <class Arguments, class Visit>
constexpr void for_each_captured_tensor(const Arguments& arguments, const Visit& visit) {
  const auto visit_one = [&]<class Field>(const Field& field) {
    if constexpr (requires { field.members; }) {
      for (const auto& view : arguments.*field.members) visit(field.tensor, view);
    } else if constexpr (requires { field.member; } && !requires { field.tensor; }) {
      for_each_captured_tensor(arguments.*field.member, visit);
    }
  };
  std::apply([&](const auto&... fields) { (visit_one(fields), ...); }, internal::kFields<Arguments>);
}

/// The first failure of check(tensor, view) over a call's tensors.
template <class Arguments, class Check>
Status check_each_tensor(Arguments& arguments, const Check& check) {
  Status failure;
  for_each_tensor(arguments, [&](const CallTensor& tensor, auto& view) {
    if (!failure.ok()) return;
    if (Status status = check(tensor, view); !status.ok()) failure = std::move(status);
  });
  return failure;
}

template <class Arguments>
constexpr std::size_t tensor_count() {
  std::size_t count = 0;
  const Arguments arguments{};
  for_each_tensor(arguments, [&](const CallTensor&, const auto&) { ++count; });
  return count;
}

namespace internal {

template <class Arguments>
constexpr std::array<CallTensor, tensor_count<Arguments>()> tensors_of_call() {
  std::array<CallTensor, tensor_count<Arguments>()> tensors{};
  std::size_t count = 0;
  const Arguments arguments{};
  for_each_tensor(arguments, [&](const CallTensor& tensor, const auto&) { tensors[count++] = tensor; });
  return tensors;
}

}  // namespace internal

/// The tensors of a call in the order of for_each_tensor().
template <class Arguments>
inline constexpr auto kTensors = internal::tensors_of_call<Arguments>();

/// The tensor of that name; null where the call has none.
template <class Arguments>
constexpr const CallTensor* find_tensor(std::string_view name) {
  const auto* const found = std::ranges::find(kTensors<Arguments>, name, &CallTensor::name);
  return found == kTensors<Arguments>.end() ? nullptr : found;
}

namespace internal {

/// A tensor that is listed twice stands in the place of one that is missing.
template <class Arguments>
constexpr bool has_distinct_names() {
  return std::ranges::all_of(kTensors<Arguments>, [](const CallTensor& tensor) {
    return std::ranges::count(kTensors<Arguments>, tensor.name, &CallTensor::name) == 1;
  });
}

static_assert(has_distinct_names<ForwardArguments>() && has_distinct_names<BackwardArguments>());
static_assert(has_distinct_names<JvpArguments>());
static_assert(has_distinct_names<QuantizeArguments>() && has_distinct_names<AppendArguments>());

}  // namespace internal

}  // namespace strobe
