// SPDX-License-Identifier: Apache-2.0
// How query heads share key heads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "call/problem.h"

namespace strobe {

/// Query heads that share a key head: query head h reads key head h / heads_per_key_head.
inline std::int64_t heads_per_key_head(const AttentionProblem& problem) {
  return problem.heads_kv == 0 ? 1 : problem.heads_q / problem.heads_kv;
}

/// Query heads that read the same keys under the same masks, so that one tile can hold rows of all of them: those that
/// share a key head, unless each has a block mask of its own. A group is `heads_per_group` neighbouring heads: at least
/// one, also where there are no query heads and so no groups.
inline std::int64_t heads_per_group(const AttentionProblem& problem) {
  return problem.modifiers.blocks_per_head ? 1 : std::max<std::int64_t>(heads_per_key_head(problem), 1);
}

/// Such groups in all.
inline std::int64_t head_groups(const AttentionProblem& problem) { return problem.heads_q / heads_per_group(problem); }

}  // namespace strobe
