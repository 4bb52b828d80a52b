// SPDX-License-Identifier: Apache-2.0
// The merge of the CPU engine, and its gradient.
#pragma once

#include "strobe/merge.h"

namespace strobe::cpu {

/// A checked merge. Allocates nothing.
void merge(const MergeArguments& arguments, const Execution& execution);

/// Likewise.
void merge_backward(const MergeBackwardArguments& arguments, const Execution& execution);

}  // namespace strobe::cpu
