// SPDX-License-Identifier: Apache-2.0
// The fields of what every GPU kernel's configuration is made of.
#pragma once

#include <string_view>

#include "gpu/variant/fields.h"
#include "kernels/scheduler/tiling.h"
#include "kernels/score/rule.h"

namespace strobe {

constexpr std::string_view type_name(Element) { return "strobe::Element"; }
constexpr std::string_view name_of(Element element) {
  switch (element) {
    case Element::bf16: return "bf16";
    case Element::fp16: return "fp16";
    case Element::fp32: return "fp32";
    case Element::int8: return "int8";
    case Element::e4m3: return "e4m3";
  }
  return "";
}

constexpr std::string_view type_name(Schedule) { return "strobe::Schedule"; }
constexpr std::string_view name_of(Schedule schedule) {
  switch (schedule) {
    case Schedule::dealt: return "dealt";
    case Schedule::sorted: return "sorted";
    case Schedule::taken: return "taken";
    case Schedule::split: return "split";
    default: return "rounds";
  }
}

constexpr std::string_view type_name(BlockBits) { return "strobe::BlockBits"; }
constexpr std::string_view name_of(BlockBits bits) {
  switch (bits) {
    case BlockBits::query_bits: return "query_bits";
    case BlockBits::key_bits: return "key_bits";
    default: return "none";
  }
}

constexpr std::string_view type_name(const TextRule&) { return "strobe::TextRule"; }
constexpr auto fields_of(const TextRule&) {
  using gpu::field;
  return gpu::all_fields(field("score", &TextRule::score), field("slope", &TextRule::slope),
                         field("wide_slope", &TextRule::wide_slope), field("mask", &TextRule::mask),
                         field("short_mask", &TextRule::short_mask), field("tile_values", &TextRule::tile_values),
                         field("query_values", &TextRule::query_values), field("key_values", &TextRule::key_values),
                         field("diagonal_values", &TextRule::diagonal_values), field("code_low", &TextRule::code_low),
                         field("code_high", &TextRule::code_high));
}

constexpr std::string_view type_name(const ScoreRule&) { return "strobe::ScoreRule"; }
constexpr auto fields_of(const ScoreRule&) {
  using gpu::field;
  return gpu::all_fields(field("element", &ScoreRule::element), field("mask_right", &ScoreRule::mask_right),
                         field("mask_left", &ScoreRule::mask_left), field("chunked", &ScoreRule::chunked),
                         field("varlen", &ScoreRule::varlen), field("leftpad", &ScoreRule::leftpad),
                         field("softcap", &ScoreRule::softcap), field("log_length", &ScoreRule::log_length),
                         field("alibi", &ScoreRule::alibi), field("bias", &ScoreRule::bias),
                         field("bias_float32", &ScoreRule::bias_float32), field("sink", &ScoreRule::sink),
                         field("max_logits", &ScoreRule::max_logits), field("dropout", &ScoreRule::dropout),
                         field("block_mask", &ScoreRule::block_mask), field("block_bits", &ScoreRule::block_bits),
                         field("tree_mask", &ScoreRule::tree_mask), field("scale_first", &ScoreRule::scale_first),
                         field("row_invariant", &ScoreRule::row_invariant), field("offsets", &ScoreRule::offsets),
                         field("query_values", &ScoreRule::query_values), field("normalized", &ScoreRule::normalized),
                         field("text", &ScoreRule::text));
}

}  // namespace strobe
