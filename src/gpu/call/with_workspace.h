// SPDX-License-Identifier: Apache-2.0
// Where a call's workspace comes from: the caller, or else the plan's pool.
#pragma once

#include <cstddef>

#include "call/workspace.h"
#include "runtime/workspace_pool.h"
#include "strobe/attention.h"

namespace strobe::gpu {

/// enqueue(workspace) with `bytes` of device memory for what it puts into the stream; null where none is needed.
template <class Enqueue>
Status with_workspace(runtime::WorkspacePool& pool, std::size_t bytes, const Execution& execution,
                      runtime::CUstream stream, const Enqueue& enqueue) {
  if (bytes == 0) return enqueue(nullptr);
  if (execution.workspace != nullptr) {
    if (Status status = check_workspace(execution, bytes); !status.ok()) return status;
    return enqueue(static_cast<std::byte*>(execution.workspace));
  }
  Result<runtime::WorkspacePool::Lease> lease = pool.acquire(stream);
  if (!lease.ok()) return lease.status();
  Status status = enqueue(reinterpret_cast<std::byte*>(lease->address()));
  const Status finished = lease->finish();
  return status.ok() ? finished : status;
}

}  // namespace strobe::gpu
