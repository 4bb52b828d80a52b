// SPDX-License-Identifier: Apache-2.0
// The kernel that converts a cache in 8 bits, for the kernel store.
#pragma once

#include <string_view>

#include "call/problem.h"
#include "gpu/variant/fields.h"
#include "gpu/variant/pack_list.h"
#include "gpu/variant/score_fields.h"
#include "kernels/auxiliary/convert_cache_params.h"
#include "runtime/variant.h"

namespace strobe::auxiliary {

constexpr std::string_view type_name(const ConvertCacheConfig&) { return "strobe::auxiliary::ConvertCacheConfig"; }
constexpr auto fields_of(const ConvertCacheConfig&) {
  using Config = ConvertCacheConfig;
  return gpu::all_fields(gpu::field("stored", &Config::stored), gpu::field("element", &Config::element));
}

}  // namespace strobe::auxiliary

namespace strobe::gpu {

auxiliary::ConvertCacheConfig convert_cache_config(const AttentionProblem& problem);

runtime::Variant convert_cache_variant(const auxiliary::ConvertCacheConfig& config, std::string_view architecture);

/// Adds the kernel that converts the problem's cache.
void list_cache_conversion(const AttentionProblem& problem, std::string_view architecture, PackList& list);

}  // namespace strobe::gpu
