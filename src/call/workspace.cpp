// SPDX-License-Identifier: Apache-2.0
#include "call/workspace.h"

#include <fmt/format.h>

#include <cstdint>

namespace strobe {

Status check_workspace(const Execution& execution, std::size_t bytes) {
  if (execution.workspace_bytes < bytes) {
    return {StatusCode::invalid_argument,
            fmt::format("workspace has {} bytes: this plan needs {}", execution.workspace_bytes, bytes)};
  }
  if (reinterpret_cast<std::uintptr_t>(execution.workspace) % kWorkspaceAlignment != 0) {
    return {StatusCode::invalid_argument, fmt::format("workspace must be aligned to {} bytes", kWorkspaceAlignment)};
  }
  return {};
}

Execution execution_in(void* workspace, std::size_t bytes, const Execution& execution) {
  Execution other = execution;
  other.workspace = workspace;
  other.workspace_bytes = bytes;
  return other;
}

}  // namespace strobe
