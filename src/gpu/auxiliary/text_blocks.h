// SPDX-License-Identifier: Apache-2.0
// Masks that are texts as block masks, found on the device before each pass.
#pragma once

#include <string_view>

#include "engine/engine.h"
#include "gpu/variant/score_fields.h"
#include "kernels/auxiliary/text_blocks_params.h"
#include "runtime/device.h"
#include "runtime/variant.h"

namespace strobe::auxiliary {

constexpr std::string_view type_name(const TextBlocksConfig&) { return "strobe::auxiliary::TextBlocksConfig"; }
constexpr auto fields_of(const TextBlocksConfig&) {
  return gpu::all_fields(gpu::field("rule", &TextBlocksConfig::rule));
}

}  // namespace strobe::auxiliary

namespace strobe::gpu {

runtime::Variant text_blocks_variant(const AttentionProblem& problem, std::string_view architecture);

/// `call`, planned for with_text_blocks(given), after the kernel.
engine::PlannedCallResult after_text_blocks(const AttentionProblem& given, const runtime::CudaDevice& device,
                                            const engine::PlannedCallResult& call);

}  // namespace strobe::gpu
