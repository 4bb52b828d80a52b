// SPDX-License-Identifier: Apache-2.0
// The engines of this build.
#pragma once

#include <span>

#include "engine/engine.h"

namespace strobe::engine {

/// In order of preference: the first that serves the tensors' device takes a call.
std::span<const Implementation* const> implementations();

}  // namespace strobe::engine
