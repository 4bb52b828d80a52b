// SPDX-License-Identifier: Apache-2.0
// The forward kernel without one ingredient each: what the FlashAttention-3 paper measures in its table 2.
#pragma once

#include <string>
#include <vector>

#include "gpu/call/override.h"
#include "kernels/sm90/forward/config.h"
#include "strobe/export.h"

namespace strobe::sm90 {

struct AblationVariant {
  std::string name;
  gpu::Override<forward::Config>::Change change;
};

/// The paper's 128 x 128 tiles with every ingredient, then without one each. For head_dim up to 128. Exported for the
/// program and the tests, no part of the public API.
STROBE_API std::vector<AblationVariant> ablation_variants();

}  // namespace strobe::sm90
