// SPDX-License-Identifier: Apache-2.0
// The Ampere engine as the registry sees it.
#pragma once

#include <string_view>

#include "engine/engine.h"

namespace strobe::sm80 {

inline constexpr std::string_view kEngine = "ampere";  // in errors

/// Serves tensors on GPUs of compute capability 8.0 and later.
const engine::Implementation& engine();

}  // namespace strobe::sm80
