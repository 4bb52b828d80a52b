// SPDX-License-Identifier: Apache-2.0
// What the host knows of a mask that is a text.
#pragma once

#include <functional>

#include "call/problem.h"
#include "kernels/expression/range.h"

namespace strobe::gpu {

/// Whether one of the queries may see one of the keys.
using MayShow = std::function<bool(const expression::Range& queries, const expression::Range& keys)>;

/// Whether the host knows the mask: it reads positions and lengths alone, which all heads and sequences have in common.
bool knows_text_mask(const AttentionProblem& problem);

/// Such a mask.
MayShow known_text_mask(const AttentionProblem& problem);

}  // namespace strobe::gpu
