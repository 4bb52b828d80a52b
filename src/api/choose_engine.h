// SPDX-License-Identifier: Apache-2.0
// Which engine takes a call.
#pragma once

#include <span>

#include "engine/engine.h"

namespace strobe::api {

/// The engine that the caller names, or the first that serves the device; the Status says why there is none.
Result<const engine::Implementation*> choose_engine(std::span<const engine::Implementation* const> engines,
                                                    const Device& device, Engine named);

/// The engine of this build for a call on that device, with threads that may be. `checked`: what the checks before that
/// found.
Result<const engine::Implementation*> engine_for(const Status& checked, const Device& device,
                                                 const Execution& execution);

}  // namespace strobe::api
