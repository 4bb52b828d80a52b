// SPDX-License-Identifier: Apache-2.0
// The kernels beside attention's that the build compiles ahead.
#pragma once

#include <string_view>

#include "gpu/variant/pack_list.h"

namespace strobe::gpu {

/// The quantiser's for the head_dims and operands that quantize() makes by default.
void add_quantizers(std::string_view architecture, PackList& list);

/// Merges of float32 results, and of those of 16 bits.
void add_merges(std::string_view architecture, PackList& list);

/// Appends to caches of the rows' own dtype and of 8 bits.
void add_appends(std::string_view architecture, PackList& list);

/// The problem with this mask, which reads `document`, a capture of int32 of one dimension, or none.
AttentionProblem with_text_mask(AttentionProblem problem, std::string_view mask);

}  // namespace strobe::gpu
