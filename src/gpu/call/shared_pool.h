// SPDX-License-Identifier: Apache-2.0
// Workspaces that calls of many shapes share, which are too large for each plan to keep its own.
#pragma once

#include <cstddef>

#include "runtime/workspace_pool.h"

namespace strobe::gpu {

/// A device's pool of blocks of `bytes`, rounded up to a power of two. Pools stay: graphs may have captured them.
runtime::WorkspacePool& shared_pool(const runtime::CudaDevice& device, std::size_t bytes);

}  // namespace strobe::gpu
