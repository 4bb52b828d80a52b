// SPDX-License-Identifier: Apache-2.0
// The Hopper engine as the registry sees it.
#pragma once

#include <string_view>

#include "engine/engine.h"

namespace strobe::sm90 {

inline constexpr std::string_view kEngine = "hopper";  // in errors

/// Serves tensors on GPUs of compute capability 9.0.
const engine::Implementation& engine();

}  // namespace strobe::sm90
