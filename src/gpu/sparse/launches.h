// SPDX-License-Identifier: Apache-2.0
// Which queries of a call of sparse attention share the workspace.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/sparse/sparse_plan.h"

namespace strobe::gpu {

/// Queries that are computed together: all of some batch entries, or some of one.
struct Queries {
  std::int64_t entry, entries;
  std::int64_t row, rows;  // of an entry; a packed q is one

  std::int64_t count() const { return entries * rows; }
};

/// The launches of a call, as many queries at once as keep to the workspace.
std::vector<Queries> launches_of(const SparseCall& call);

}  // namespace strobe::gpu
