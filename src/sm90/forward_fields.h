// SPDX-License-Identifier: Apache-2.0
// Fields of a forward's variant that follow from its tiles.
#pragma once

#include "kernels/sm90/forward/config.h"

namespace strobe::sm90 {

/// `tiles` with what registers and shared memory leave beside them: output stages, registers of producers and
/// consumers, and what consumers do ahead or in a shorter way.
forward::Config completed(const forward::Config& tiles);

}  // namespace strobe::sm90
