// SPDX-License-Identifier: Apache-2.0
// Whether a variant's tiles fit a multiprocessor and the call's options.
#pragma once

#include "kernels/sm90/forward/config.h"

namespace strobe::sm90 {

/// Whether a multiprocessor has the shared memory of as many CTAs as the variant wants.
bool fits_shared_memory(const forward::Config& config);

/// Whether a block of keys is whole blocks of dropout's numbers, and part of one block of a mask.
bool fits_options(const forward::Config& config);

/// Whether shared memory, options and registers allow the tiles.
bool fits(const forward::Config& config);

}  // namespace strobe::sm90
