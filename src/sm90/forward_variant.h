// SPDX-License-Identifier: Apache-2.0
// The forward kernel's variants for the kernel store: name, source and hash from one list of the fields.
#pragma once

#include <string_view>

#include "gpu/variant/row_format_fields.h"
#include "gpu/variant/score_fields.h"
#include "kernels/sm90/forward/config.h"
#include "runtime/variant.h"

namespace strobe::sm90 {

/// The kernel of a variant, for the kernel store.
runtime::Variant forward_variant(const forward::Config& config);

namespace forward {

constexpr std::string_view type_name(KeySource) { return "strobe::sm90::forward::KeySource"; }
constexpr std::string_view name_of(KeySource source) {
  switch (source) {
    case KeySource::page_blocks: return "page_blocks";
    case KeySource::page_boxes: return "page_boxes";
    case KeySource::page_rows: return "page_rows";
    case KeySource::rows_in_format: return "rows_in_format";
    default: return "tensor";
  }
}
constexpr std::string_view type_name(Loop) { return "strobe::sm90::forward::Loop"; }
constexpr std::string_view name_of(Loop loop) {
  switch (loop) {
    case Loop::serial: return "serial";
    case Loop::eight_bit: return "eight_bit";
    case Loop::eight_bit_serial: return "eight_bit_serial";
    case Loop::wide: return "wide";
    default: return "pipelined";
  }
}
constexpr std::string_view type_name(const Config&) { return "strobe::sm90::forward::Config"; }
constexpr auto fields_of(const Config&) {
  using gpu::field;
  return gpu::all_fields(
      field("rule", &Config::rule), field("head_dim", &Config::head_dim), field("head_dim_v", &Config::head_dim_v),
      field("consumer_warpgroups", &Config::consumer_warpgroups),
      field("producer_warpgroups", &Config::producer_warpgroups), field("block_n", &Config::block_n),
      field("stages", &Config::stages), field("q_stages", &Config::q_stages), field("loop", &Config::loop),
      field("ping_pong", &Config::ping_pong), field("ctas_per_sm", &Config::ctas_per_sm),
      field("packed_heads", &Config::packed_heads), field("schedule", &Config::schedule),
      field("table_sequences", &Config::table_sequences), field("operands", &Config::operands),
      field("keys_per_value_scale", &Config::keys_per_value_scale), field("rotated_columns", &Config::rotated_columns),
      field("float_output", &Config::float_output), field("stored", &Config::stored),
      field("raw_stages", &Config::raw_stages), field("keys", &Config::keys), field("format", &Config::format),
      field("entries", &Config::entries), field("whole_chunks", &Config::whole_chunks),
      field("bias_stages", &Config::bias_stages), field("segment_blocks", &Config::segment_blocks),
      field("keeps_in_smem", &Config::keeps_in_smem), field("looks_ahead", &Config::looks_ahead),
      field("late_values", &Config::late_values), field("masks_by_words", &Config::masks_by_words),
      field("own_begins", &Config::own_begins), field("relative_alibi", &Config::relative_alibi),
      field("caps_in_softmax", &Config::caps_in_softmax), field("finds_work_again", &Config::finds_work_again),
      field("exponentials_ahead", &Config::exponentials_ahead), field("pages_ahead", &Config::pages_ahead),
      field("output_stages", &Config::output_stages), field("producer_registers", &Config::producer_registers),
      field("consumer_registers", &Config::consumer_registers), field("output_warpgroups", &Config::output_warpgroups),
      field("output_registers", &Config::output_registers), field("key_panels", &Config::key_panels),
      field("register_columns", &Config::register_columns), field("values_in_keys", &Config::values_in_keys),
      field("in_pairs", &Config::in_pairs), field("debug", &Config::debug));
}

}  // namespace forward
}  // namespace strobe::sm90
