// SPDX-License-Identifier: Apache-2.0
// Choices that `strobe tune` measured: which calls share one, and what plans take.
#pragma once

#include <string>
#include <string_view>

#include "call/problem.h"
#include "gpu/plan/choice.h"
#include "runtime/device.h"
#include "strobe/export.h"

namespace strobe::gpu {

/// The call that stands in a table for all that choose alike. Batch, lengths, windows and chunks are the nearest powers
/// of two, by their ratio; the values of scale, softcap and dropout, and whether an LSE is wanted, do not count.
AttentionProblem tuned_call(AttentionProblem problem);

/// What a table calls the choices of a family for such calls.
STROBE_API std::string tuned_name(std::string_view family, const AttentionProblem& problem);

/// The table's choice for a call on this device; the rule's where it has none, and of row-invariant forwards.
PlannedChoice tuned_choice(std::string_view family, const AttentionProblem& problem, const runtime::CudaDevice& device);

}  // namespace strobe::gpu
