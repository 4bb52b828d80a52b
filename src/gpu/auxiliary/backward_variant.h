// SPDX-License-Identifier: Apache-2.0
// The kernels around the main one of a backward, for the kernel store.
#pragma once

#include <string_view>

#include "call/problem.h"
#include "gpu/variant/fields.h"
#include "kernels/auxiliary/prepare_backward_params.h"
#include "runtime/variant.h"

namespace strobe::auxiliary {

constexpr std::string_view type_name(const PrepareBackwardConfig&) {
  return "strobe::auxiliary::PrepareBackwardConfig";
}
constexpr auto fields_of(const PrepareBackwardConfig&) {
  using Config = PrepareBackwardConfig;
  using gpu::field;
  return gpu::all_fields(field("element", &Config::element), field("varlen", &Config::varlen),
                         field("offsets", &Config::offsets), field("threads_per_row", &Config::threads_per_row),
                         field("two_chunks", &Config::two_chunks), field("normalized", &Config::normalized));
}

}  // namespace strobe::auxiliary

namespace strobe::gpu {

/// LSE and D of every query row. `architecture`: what NVRTC compiles for, "sm_90a".
runtime::Variant prepare_variant(auxiliary::PrepareBackwardConfig config, std::string_view architecture);

/// Query rows of a large LSE, once more, before that.
runtime::Variant large_rows_variant(const auxiliary::PrepareBackwardConfig& config, std::string_view architecture);

/// The gradient of sinks; the same for all calls.
runtime::Variant sink_variant(std::string_view architecture);

/// The variant of the kernel that finds large rows, which does not depend on the threads of a row.
constexpr auxiliary::PrepareBackwardConfig large_rows_config(const auxiliary::PrepareBackwardConfig& prepare) {
  return {.element = prepare.element, .varlen = prepare.varlen, .offsets = prepare.offsets};
}

/// Of the backward's rule.
auxiliary::PrepareBackwardConfig prepare_config(const AttentionProblem& problem, const ScoreRule& rule);

}  // namespace strobe::gpu
