// SPDX-License-Identifier: Apache-2.0
// The workspace that a caller brings.
#pragma once

#include <cstddef>

#include "strobe/attention.h"
#include "strobe/status.h"

namespace strobe {

inline constexpr std::size_t kWorkspaceAlignment = 64;

/// Whether execution.workspace, which is not null, serves a plan that needs `bytes`.
Status check_workspace(const Execution& execution, std::size_t bytes);

/// `execution` with another workspace.
Execution execution_in(void* workspace, std::size_t bytes, const Execution& execution);

}  // namespace strobe
