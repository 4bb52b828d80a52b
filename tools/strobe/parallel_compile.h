// SPDX-License-Identifier: Apache-2.0
// Kernels compiled into the user's cache by several processes, with a progress bar.
#pragma once

#include <vector>

#include "gpu/compile_ahead.h"
#include "strobe/status.h"

namespace strobe::program {

/// Compiles what the cache lacks of them, in at most `jobs` processes. Reasons for failures are printed.
Status compile_all(const std::vector<runtime::Variant>& kernels, runtime::NvrtcVersion newest, unsigned jobs);

}  // namespace strobe::program
