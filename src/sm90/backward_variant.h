// SPDX-License-Identifier: Apache-2.0
// The variants of the backward's kernels for the kernel store: name, source and hash from one list of the fields each.
#pragma once

#include <string_view>

#include "gpu/variant/score_fields.h"
#include "kernels/sm90/backward/config.h"
#include "kernels/sm90/backward/query_gradient/config.h"
#include "runtime/variant.h"

namespace strobe::sm90 {

/// dK, dV, and dQ's sums or dS.
runtime::Variant backward_variant(const backward::Config& config);

/// dQ from its sums.
runtime::Variant finish_variant(const backward::Config& config);

/// dK and dV from the sums of items that share keys.
runtime::Variant finish_keys_variant(backward::Config config);

/// dQ from dS.
runtime::Variant query_gradient_variant(const backward::QueryGradientConfig& config);

/// The bias's gradient.
runtime::Variant bias_gradient_variant(const backward::Config& config);

/// The gradients of captures.
runtime::Variant capture_gradient_variant(const backward::Config& config);

namespace backward {

constexpr std::string_view type_name(const Config&) { return "strobe::sm90::backward::Config"; }
constexpr auto fields_of(const Config&) {
  using gpu::field;
  return gpu::all_fields(
      field("rule", &Config::rule), field("head_dim", &Config::head_dim), field("head_dim_v", &Config::head_dim_v),
      field("block_m", &Config::block_m), field("q_stages", &Config::q_stages), field("do_stages", &Config::do_stages),
      field("by_roles", &Config::by_roles), field("wide", &Config::wide),
      field("register_columns", &Config::register_columns), field("staged_dq", &Config::staged_dq),
      field("ordered", &Config::ordered), field("alternates", &Config::alternates),
      field("p_stages", &Config::p_stages), field("ds_stages", &Config::ds_stages),
      field("shares_keys", &Config::shares_keys), field("bias_stages", &Config::bias_stages),
      field("dp_ahead", &Config::dp_ahead), field("captures", &Config::captures), field("debug", &Config::debug));
}

constexpr std::string_view type_name(const QueryGradientConfig&) {
  return "strobe::sm90::backward::QueryGradientConfig";
}
constexpr auto fields_of(const QueryGradientConfig&) {
  using Query = QueryGradientConfig;
  using gpu::field;
  return gpu::all_fields(field("rule", &Query::rule), field("head_dim", &Query::head_dim),
                         field("column_parts", &Query::column_parts), field("block_m", &Query::block_m),
                         field("consumer_warpgroups", &Query::consumer_warpgroups), field("stages", &Query::stages),
                         field("debug", &Query::debug));
}

}  // namespace backward
}  // namespace strobe::sm90
