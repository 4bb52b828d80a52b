// SPDX-License-Identifier: Apache-2.0
// The kernel that makes page tables of lists.
#pragma once

#include <cstdint>
#include <string_view>

#include "gpu/sparse/source_places.h"
#include "gpu/variant/fields.h"
#include "kernels/auxiliary/listed_places_params.h"
#include "runtime/kernel.h"
#include "runtime/launch.h"
#include "runtime/variant.h"

namespace strobe::auxiliary {

constexpr std::string_view type_name(const ListedPlacesConfig&) { return "strobe::auxiliary::ListedPlacesConfig"; }
constexpr auto fields_of(const ListedPlacesConfig&) {
  return gpu::all_fields(gpu::field("pages", &ListedPlacesConfig::pages));
}

}  // namespace strobe::auxiliary

namespace strobe::gpu {

/// Keys that a list of the source names at most.
std::int64_t list_width(const SparseSource& source);

runtime::Variant listed_places_variant(const auxiliary::ListedPlacesConfig& config, std::string_view architecture);

/// The parameters of source `index`, for all its queries and no outputs.
auxiliary::ListedPlacesParams listed_places_params(const SparseForwardArguments& arguments, std::size_t index,
                                                   const SourcePlaces& places, std::int64_t lists);

}  // namespace strobe::gpu
