// SPDX-License-Identifier: Apache-2.0
// What may be chosen for a call: for the program `strobe`, no part of the public API.
#pragma once

#include <string>
#include <vector>

#include "call/problem.h"
#include "gpu/plan/candidates.h"
#include "gpu/plan/device.h"
#include "strobe/export.h"
#include "strobe/status.h"

namespace strobe::gpu {

struct CallCandidates {
  std::string name;                   // of the call in a table: tuned_name()
  std::vector<Candidate> candidates;  // the rule's first
};

/// Of the family that takes the call on a device of that name and shape; unsupported where none does, and of
/// row-invariant forwards, whose bits a choice would change.
STROBE_API Result<CallCandidates> candidates_of(const AttentionProblem& problem, const std::string& name,
                                                const DeviceShape& shape);

}  // namespace strobe::gpu
