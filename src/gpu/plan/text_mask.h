// SPDX-License-Identifier: Apache-2.0
// What the host knows of a mask that is a text.
#pragma once

#include <functional>

#include "call/problem.h"
#include "kernels/expression/range.h"

namespace strobe::gpu {

/// Whether one of the queries may see one of the keys.
using MayShow = std::function<bool(const expression::Range& queries, const expression::Range& keys)>;

/// Of a mask that reads positions and lengths alone, which all heads and sequences have in common; of others empty.
MayShow known_text_mask(const AttentionProblem& problem);

}  // namespace strobe::gpu
